"""Arrays to tensors that share their memory, where that is safe."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paramsync.checkpoint.placement import ALIGNMENT

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def alias(array: npt.NDArray[np.generic]) -> tf.Tensor:
    """The array as a tensor on the CPU: the same memory where that is safe, else a copy.

    Copied are arrays whose address is not aligned, that are not in one piece or may not be written to, and those of
    strings, of floats of one byte, of quantized and other small integers: dlpack has no word for them. A tensor that
    shares keeps the array alive. Nobody may write to the array as long as the tensor lives.
    """
    if _can_share(array):
        if array.dtype == _BFLOAT16:
            with tf.device("CPU:0"):
                return tf.bitcast(_shared(array.view(np.uint16)), tf.bfloat16)  # the same memory by another name
        tensor = _shared(array)
        if array.dtype.kind != "b" or tensor.dtype == tf.bool:  # older versions of numpy export bool as bytes
            return tensor
    with tf.device("CPU:0"):
        return tf.constant(array)


def _shared(array: npt.NDArray[np.generic]) -> tf.Tensor:
    exporter: Any = array  # numpy types the method for numbers only, which these are
    return tf.experimental.dlpack.from_dlpack(exporter.__dlpack__())


def _can_share(array: npt.NDArray[np.generic]) -> bool:
    return bool(
        ((array.dtype.isbuiltin == 1 and array.dtype.kind in "biufc") or array.dtype == _BFLOAT16)
        and array.size
        and array.flags.c_contiguous
        and array.flags.writeable  # numpy does not export what it may not write
        and array.ctypes.data % ALIGNMENT == 0
    )
