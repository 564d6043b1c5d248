"""Puts parameters, given by name or in a checkpoint, in the order of a graph, after checking that they fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.checkpoint.reader import Bundle
from paramsync.graphs.graph import Graph
from paramsync.graphs.object_paths import keys_of
from paramsync.graphs.specs import check
from paramsync.graphs.specs import located as _located


def arrange(graph: Graph, values: Mapping[str, Any], *, where: str = "the graph") -> tuple[tf.Tensor, ...]:
    """The values in the order of `graph.parameters`. Arrays are copied, tensors are not.

    Raises ParameterError, which begins with `where` and lists missing and unneeded names, and other dtypes or shapes.
    """
    wanted = {spec.name for spec in graph.parameters}
    extra = [name for name in values if name not in wanted]
    tensors = {name: _tensor(value) for name, value in values.items() if name in wanted}
    check(graph.parameters, tensors, lambda tensor: (tensor.dtype.name, tuple(tensor.shape)), where=where, extra=extra)
    return tuple(tensors[spec.name] for spec in graph.parameters)


def read(graph: Graph, checkpoint: Path | Bundle, *, where: str | None = None) -> tuple[tf.Tensor, ...]:
    """Read the parameters of a graph from a checkpoint, ours or TensorFlow's, whatever else it has.

    Checks their checksums, and that they are finite. `checkpoint` is a prefix or a bundle, whose memory the tensors
    share if that is safe. Raises ParameterError for a parameter that is missing or does not fit,
    CorruptCheckpointError for a damaged checkpoint.
    """
    bundle = checkpoint if isinstance(checkpoint, Bundle) else Bundle.open(Path(checkpoint), mapped=False)
    keys = located(graph, bundle, where=where)
    bundle.verify(set(keys), finite=True)
    return shared(bundle, keys)


def located(graph: Graph, bundle: Bundle, *, where: str | None = None) -> tuple[str, ...]:
    """As `specs.located`, for names that may be other paths through TensorFlow's objects."""
    return _located(graph, bundle, where=where, keys_of=keys_of)


def shared(bundle: Bundle, keys: Iterable[str]) -> tuple[tf.Tensor, ...]:
    """The values of a bundle whose entries were checked, sharing its memory. Raises as `Bundle.array` does."""
    return tuple(alias(bundle.array(key)) for key in keys)


def _tensor(value: Any) -> tf.Tensor:
    """Arrays are copied to the CPU: the caller may go on writing to them."""
    if isinstance(value, tf.Tensor):
        return value
    if isinstance(value, np.ndarray):
        with tf.device("CPU:0"):
            return tf.constant(value)
    return tf.convert_to_tensor(value)


_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def alias(array: npt.NDArray[np.generic]) -> tf.Tensor:
    """The array as a tensor on the CPU: the same memory if that is safe, else a copy.

    Copied are arrays that are not aligned, not contiguous or read-only, and dtypes that dlpack does not have: strings,
    floats of one byte, quantized and other small integers. A tensor that shares memory keeps the array alive. Nobody
    may write to the array as long as the tensor lives.
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
