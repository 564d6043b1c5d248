"""Calls a model once on made up inputs, and compares its results with those of its graph.

A trace may differ from a call, because of the model's own code or Keras' code.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import every_node
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.functions import reason
from paramsync.graphs.sources.traces import Own, Trace
from paramsync.graphs.specs import described

_log = logging.getLogger("paramsync.graphs")

_SIZES = ((2, 3, 5, 7), (2, 64, 64, 64))
"""Sizes for unknown dimensions, by position: all different first, then powers of two for strides and pools."""
_MOST = 1 << 21  # elements of a made up input
_ROUNDING = {"float16": 0.02, "bfloat16": 0.1}  # of the largest value, if any op computes in this dtype
_OTHER_ROUNDING = 1e-3
_WORDS = np.array([b"", b"a", b"bc", b"0", b"1"], object)


def compare(graph: Graph, signature: str, trace: Trace, values: Sequence[tf.Tensor]) -> None:
    """Raise GraphError if the graph gives other shapes than the model, or values that differ by more than rounding.

    `values` are the graph's parameters. Leaves out graphs that draw random numbers, and models that cannot compute
    the made up inputs.
    """
    if trace.own is None or graph.stochastic or not tf.executing_eagerly():
        return
    inputs, expected = _called(trace.own, signature)
    if expected is None:
        return
    try:
        outputs = graph(values, dict(zip(trace.inputs, inputs, strict=True)), signature=signature)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise GraphError(
            _otherwise(trace.own, f"its graph cannot compute what the model does: {reason(error)}")
        ) from error
    rounding = max((_ROUNDING.get(dtype, _OTHER_ROUNDING) for dtype in _dtypes(graph)), default=_OTHER_ROUNDING)
    for name, wanted in zip(trace.outputs, expected, strict=True):
        if name in outputs and (difference := _difference(name, outputs[name], wanted, rounding)):
            raise GraphError(_otherwise(trace.own, difference))


def _called(own: Own, signature: str) -> tuple[list[tf.Tensor], list[tf.Tensor] | None]:
    """The tensors of made up inputs, and the model's results; None if it cannot compute them."""
    why = ""
    for sizes in _SIZES if any(None in (spec.shape or ()) for spec in own.specs) else _SIZES[:1]:
        try:
            inputs = [_made_up(spec, sizes, np.random.default_rng(0)) for spec in own.specs]
            results = tf.nest.flatten(own.call(*inputs), expand_composites=True)
            tensors = [tf.convert_to_tensor(result) for result in results if result is not None]
        except Exception as error:  # noqa: BLE001, the model may well compute real inputs
            why = reason(error)
        else:
            return tf.nest.flatten(inputs, expand_composites=True), tensors
    _log.debug("%s of %s was not compared with its own call: %s", signature, own.name, why)
    return [], None


def _otherwise(own: Own, difference: str) -> str:
    return (
        f"{own.name} is traced otherwise than it is called: {difference}. Where Keras traces a layer wrongly"
        " whose sizes are not known, as it does TimeDistributed, say them: keras.Input((time, ...)), or inputs= as"
        " tf.TensorSpec; else leave out of call() what depends on how it is called. capture(..., compare=False) takes"
        " the graph as it is"
    )


def _difference(name: str, found: tf.Tensor, wanted: tf.Tensor, rounding: float) -> str:
    """The difference in one output, or ""."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        kinds = [described(tensor.dtype.name, tuple(tensor.shape)) for tensor in (found, wanted)]
        return f"its graph gives {name!r} as {kinds[0]}, the model {kinds[1]}"
    ours, expected = found.numpy(), wanted.numpy()
    if not (found.dtype.is_floating or found.dtype.is_complex):
        return "" if np.array_equal(ours, expected) else f"{name!r} differs from what the model gives"
    wide = np.complex128 if found.dtype.is_complex else np.float64
    ours, expected = np.asarray(ours).astype(wide), np.asarray(expected).astype(wide)
    if np.allclose(ours, expected, rtol=0, atol=rounding * _scale(expected), equal_nan=True):
        return ""
    by = np.max(np.abs(ours - expected), initial=0.0, where=np.isfinite(ours - expected))
    return f"{name!r} differs from what the model gives, by up to {by:.3g} of {_scale(expected):.3g}"


def _scale(array: Any) -> float:
    return float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array)))


def _dtypes(graph: Graph) -> Iterator[str]:
    """The small float dtypes in which any op computes."""
    graph_def = tf.compat.v1.GraphDef.FromString(graph.message().graph_def)
    for node in every_node(graph_def):
        for value in node.attr.values():
            if value.type in (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum):
                yield tf.as_dtype(value.type).name


def _made_up(spec: tf.TypeSpec, sizes: Sequence[int], random: np.random.Generator) -> Any:
    """A value for a leaf of the arguments. Whole numbers are small: they may be rows of a table."""
    shape = [sizes[min(at, len(sizes) - 1)] if size is None else size for at, size in enumerate(spec.shape)]
    if np.prod(shape, dtype=float) > _MOST:
        raise ValueError(f"{spec} is too large to be made up")
    if spec.dtype == tf.string:
        dense = tf.constant(random.choice(_WORDS, shape), tf.string)
    elif spec.dtype.is_integer or spec.dtype.is_bool:
        dense = tf.cast(random.integers(0, 2, shape), spec.dtype)
    else:
        dense = tf.cast(random.random(shape), spec.dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.sparse.from_dense(dense)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_tensor(dense, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype)
    return dense
