"""Calls a model once on made-up inputs, and compares its results with its graph's results.

A trace may differ from a call, because of the model's own code or Keras' code.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import every_node
from paramsync.graphs.graph import Graph
from paramsync.graphs.made_up import difference, made_up
from paramsync.graphs.sources.functions import reason
from paramsync.graphs.sources.traces import Own, Trace
from paramsync.graphs.specs import described

_log = logging.getLogger("paramsync.graphs")

_SIZES = ((2, 3, 5, 7), (2, 64, 64, 64))
"""Sizes for unknown dimensions, by position. The second try has powers of two, for strides and pools."""
# allowed difference, as a share of the largest value, by the dtype in which an op computes
_ROUNDING = {"float16": 0.02, "bfloat16": 0.1}
_OTHER_ROUNDING = 1e-3


def compare(graph: Graph, signature: str, trace: Trace, values: Sequence[tf.Tensor]) -> None:
    """Raise GraphError if the graph gives other shapes than the model, or values that differ by more than rounding.

    `values` are the graph's parameters. Compares nothing if the trace has no call of the model, the graph draws random
    numbers, the model fails for the made-up inputs, or TensorFlow does not execute eagerly.
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
    """Call the model on made-up inputs. Returns the input tensors and the results; ([], None) if the call fails."""
    why = ""
    for sizes in _SIZES if any(None in (spec.shape or ()) for spec in own.specs) else _SIZES[:1]:
        try:
            inputs = [_argument(spec, sizes) for spec in own.specs]
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
    """Describe the difference in one output; "" if there is none."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        kinds = [described(tensor.dtype.name, tuple(tensor.shape)) for tensor in (found, wanted)]
        return f"its graph gives {name!r} as {kinds[0]}, the model {kinds[1]}"
    by = difference(found.numpy(), wanted.numpy(), rounding)
    return f"{name!r} differs from what the model gives, {by}" if by else ""


def _dtypes(graph: Graph) -> Iterator[str]:
    """Yield the small float dtypes in which ops of the graph compute."""
    graph_def = tf.compat.v1.GraphDef.FromString(graph.message().graph_def)
    for node in every_node(graph_def):
        for value in node.attr.values():
            if value.type in (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum):
                yield tf.as_dtype(value.type).name


def _argument(spec: tf.TypeSpec, sizes: Sequence[int]) -> Any:
    """Return a made-up value for a leaf of the arguments."""
    shape = [sizes[min(at, len(sizes) - 1)] if size is None else size for at, size in enumerate(spec.shape)]
    dense = made_up(spec.dtype, shape)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.sparse.from_dense(dense)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_tensor(dense, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype)
    return dense
