"""Inputs of other shapes than a signature names: whether a graph can compute them, and what it would make of them.

Its shapes are inferred before it computes: a graph that adds a row to a column makes a table of two small inputs.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from paramsync.errors import InputError
from paramsync.graphs.graph import Graph
from paramsync.graphs.inlining import TooManyError, inlined
from paramsync.graphs.nodes import leading_to, with_functions
from paramsync.inference.questions import Question

MOST_BYTES = 256 << 20
"""Memory that one tensor may take which a graph makes of such inputs."""

_LARGE = 1 << 14  # bytes of a constant that its shape stands for: no shape follows from so many values
_KEPT = 256  # shapes whose outcome is cached, for each graph

_Shapes = tuple[tuple[str, tuple[int, ...]], ...]
_KNOWN: WeakKeyDictionary[Graph, OrderedDict[tuple[str, _Shapes], str]] = WeakKeyDictionary()
_LOOKED_AT: WeakKeyDictionary[Graph, dict[str, _Computed | None]] = WeakKeyDictionary()  # by signature


def check(question: Question) -> None:
    """Raise InputError where the graph cannot compute the inputs, or would take too much memory. Any thread."""
    graph = question.resident.graph
    shapes = tuple(sorted((name, array.shape) for name, array in question.inputs.items()))
    key = (question.signature, shapes)
    known = _KNOWN.setdefault(graph, OrderedDict())
    problem = known.get(key)
    if problem is None:
        problem = known[key] = _problem(graph, question.signature, dict(shapes))
        while len(known) > _KEPT:
            known.popitem(last=False)
    if problem:
        raise graph.misfit(question.signature, question.inputs, problem)


def refused(question: Question, error: tf.errors.OpError) -> InputError:
    """The graph's own error as an InputError."""
    return question.resident.graph.misfit(question.signature, question.inputs, _line(error.message))


def _problem(graph: Graph, signature: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """What is wrong with inputs of these shapes; empty where nothing is."""
    looked_at = _LOOKED_AT.setdefault(graph, {})
    if signature not in looked_at:
        looked_at[signature] = _computed(graph, signature)
    computed = looked_at[signature]
    if computed is None:
        return "the graph is too large for others"
    given = {tensor: shapes[name] for name, tensor in computed.inputs.items()}
    graph_def = tf.compat.v1.GraphDef()
    graph_def.CopyFrom(computed.graph_def)
    for node in graph_def.node:
        if node.op == "Placeholder" and (shape := given.get(f"{node.name}:0")) is not None:
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
    try:
        with tf.Graph().as_default() as built:
            tf.graph_util.import_graph_def(graph_def, name="")
    except (ValueError, tf.errors.OpError) as error:
        return _line(str(error))
    sizes = [_bytes(tensor) for operation in built.get_operations() for tensor in operation.outputs]
    if (most := max(sizes, default=0)) > MOST_BYTES:
        return f"it would make {most} bytes of them, more than the {MOST_BYTES} that it may"
    return ""


@dataclass(frozen=True, slots=True)
class _Computed:
    """The computation of a signature, without calls and large constants, and its inputs as tensors there."""

    graph_def: Any
    inputs: Mapping[str, str]


def _computed(graph: Graph, signature: str) -> _Computed | None:
    """None where the graph is too large to analyse."""
    message = graph.message()
    try:
        whole = inlined(tf.compat.v1.GraphDef.FromString(message.graph_def))
    except TooManyError:
        return None
    described = message.signatures[signature]
    nodes = {node.name: node for node in whole.graph_def.node}
    needed = leading_to(nodes, [whole.tensor(output.tensor) for output in described.outputs])
    computed = with_functions(whole.graph_def, needed)
    for node in computed.node:
        if node.op == "Const" and node.attr["value"].ByteSize() > _LARGE:
            shape = tf.TensorShape(node.attr["value"].tensor.tensor_shape)
            node.op = "Placeholder"
            node.attr.pop("value")
            node.attr["shape"].shape.CopyFrom(shape.as_proto())
    return _Computed(computed, {spec.name: spec.tensor for spec in described.inputs})


def _bytes(tensor: Any) -> int:
    """0 where the shape is not known beforehand. A size of 0 counts as 1: kernels loop over the other dimensions."""
    shape = tensor.shape
    if not shape.is_fully_defined():
        return 0
    sizes: list[int] = [size or 1 for size in shape.as_list()]
    return math.prod(sizes) * int(tensor.dtype.base_dtype.size or 1)


def _line(text: str) -> str:
    return text.partition("\n")[0].partition(" for '{{node")[0][:300]
