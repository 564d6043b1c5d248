"""Arrays to tensors that share their memory, where that is safe."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

ALIGNMENT = 64
"""What TensorFlow's kernels expect of an address. A tensor anywhere else aborts the process, so it is copied."""


def alias(array: npt.NDArray[np.generic]) -> tf.Tensor:
    """The array as a tensor on the CPU: the same memory where that is safe, else a copy.

    A tensor that shares keeps the array alive. Nobody may write to the array as long as the tensor lives.
    """
    if _can_share(array):
        exporter: Any = array  # numpy types the method for numbers only, which these are
        return tf.experimental.dlpack.from_dlpack(exporter.__dlpack__())
    with tf.device("CPU:0"):
        return tf.constant(array)


def _can_share(array: npt.NDArray[np.generic]) -> bool:
    # dlpack leaves out bool, bfloat16 and strings; numpy does not export what it may not write
    return bool(
        array.dtype.kind in "fiuc"
        and array.size
        and array.flags.c_contiguous
        and array.flags.writeable
        and array.ctypes.data % ALIGNMENT == 0
    )
