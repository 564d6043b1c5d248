"""Finds traits of signatures, once for each graph: whether requests may share a call, and whether calls are prompt."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy.typing as npt
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import every_node
from paramsync.graphs.graph import Graph
from paramsync.graphs.made_up import difference, made_up
from paramsync.graphs.specs import Shape, Signature, TensorSpec
from paramsync.inference.execute import Arrays, called
from paramsync.inference.questions import Answer
from paramsync.inference.resident import Resident
from paramsync.inference.rows import are_apart, is_elementwise

_log = logging.getLogger("paramsync.batching")


@dataclass(frozen=True, slots=True)
class Traits:
    together: bool = False
    """Rows are independent: their results are the same together, alone or in another order."""
    prompt: bool = False
    """The time of a call depends only on the shapes of its inputs: no op waits."""
    any_shape: bool = False
    """The input may have another shape than the signature's."""


UNKNOWN = Traits()

_FOUND: WeakKeyDictionary[Graph, Mapping[str, Traits]] = WeakKeyDictionary()  # a graph never changes

# Ops whose work is bounded by the sizes of their inputs
_PROMPT_OPS = """
    Abs Add AddN AddV2 All Any ArgMax ArgMin AvgPool BatchMatMul BatchMatMulV2 BatchMatMulV3 BiasAdd Cast Ceil
    ClipByValue ConcatV2 Const Conv2D Cos DepthwiseConv2dNative DivNoNan Einsum Elu EnsureShape Equal Erf Erfc Exp
    ExpandDims Expm1 Floor FusedBatchNormV3 Gather GatherNd GatherV2 Greater GreaterEqual Identity IdentityN LeakyRelu
    Less LessEqual Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr MatMul Max MaxPool Maximum Mean Min Minimum Mul
    Neg NoOp NotEqual OnesLike Pack PartitionedCall Placeholder Pow PreventGradient Prod RealDiv Reciprocal Relu Relu6
    Reshape Round Rsqrt Select SelectV2 Selu Shape Sigmoid Sign Sin Size Softmax Softplus Softsign Split SplitV Sqrt
    Square SquaredDifference Squeeze StopGradient StridedSlice Sub Sum Tan Tanh Transpose Unpack ZerosLike
"""
_PROMPT = frozenset(_PROMPT_OPS.split())
_ROWS = 3
_OPEN = 4  # the made-up size of unknown dimensions other than the first
_ROUNDING = 1e-3  # kernels may divide their work differently; the results then differ by less than this share


def of(graph: Graph, signature: str) -> Traits:
    """Return the traits of a signature; all False if the graph was not examined. Safe from any thread."""
    return _FOUND.get(graph, {}).get(signature, UNKNOWN)


def fits(graph: Graph, signature: str, inputs: Mapping[str, Any], outputs: Collection[str] = ()) -> bool:
    """Return whether the inputs have the signature's shapes. Raises as `Graph.check_inputs` does.

    Other shapes raise no error if the graph can compute inputs of any shape.
    """
    return graph.check_inputs(signature, inputs, outputs, any_shape=of(graph, signature).any_shape)


def examine(resident: Resident) -> None:
    """Find the traits of a new graph, by a few calls of each signature on made-up inputs."""
    graph = resident.graph
    prompt = _is_prompt(graph)
    _FOUND[graph] = {
        name: Traits(
            together=_independent(resident, name, signature),
            prompt=prompt,
            any_shape=_takes_any_shape(graph, name),
        )
        for name, signature in graph.signatures.items()
    }


def _is_prompt(graph: Graph) -> bool:
    graph_def = tf.compat.v1.GraphDef.FromString(graph.message().graph_def)
    return {node.op for node in every_node(graph_def)} <= _PROMPT


def _takes_any_shape(graph: Graph, signature: str) -> bool:
    try:
        return is_elementwise(graph, signature)
    except (GraphError, LookupError, ValueError):  # a graph that is too large, or contradicts itself
        return False


def _independent(resident: Resident, name: str, signature: Signature) -> bool:
    specs = [*signature.inputs.values(), *signature.outputs.values()]
    if resident.graph.stochastic or not signature.inputs or not all(_has_rows(spec.shape) for spec in specs):
        return False
    try:
        return are_apart(resident.graph, name) and _same(
            resident, name, {input_name: _made_up(spec) for input_name, spec in signature.inputs.items()}
        )
    except Exception as error:  # noqa: BLE001, the graph may well compute on real inputs
        _log.debug("%s is called for each request: %s", name, error)
        return False


def _same(resident: Resident, name: str, inputs: Arrays) -> bool:
    """Return whether three rows in one call give the same results as one row alone and the other two reversed."""

    def ask(rows: list[int]) -> Answer:
        return called(resident, name, {input_name: array[rows] for input_name, array in inputs.items()})

    whole, alone, others = ask([0, 1, 2]), ask([1]), ask([2, 0])
    return all(
        len(array) == _ROWS
        and not difference(alone[output_name], array[[1]], _ROUNDING)
        and not difference(others[output_name], array[[2, 0]], _ROUNDING)
        for output_name, array in whole.items()
    )


def _has_rows(shape: Shape) -> bool:
    return bool(shape) and shape is not None and shape[0] is None


def _made_up(spec: TensorSpec) -> npt.NDArray[Any]:
    """Return an input whose rows differ."""
    assert spec.shape is not None
    shape = (_ROWS, *(_OPEN if size is None else size for size in spec.shape[1:]))
    array: npt.NDArray[Any] = made_up(tf.as_dtype(spec.dtype), shape).numpy()
    return array
