"""Nodes of GraphDefs: finds the nodes that lead to a tensor, counts tensors, and rewrites a node as another op."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import full, functions_called, node_of, reach

PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
"""Placeholders without a default value."""

REFERENCES = frozenset({"Variable", "VariableV2"})
"""Variables that give a reference, which reads like a value already."""

VARIABLES = REFERENCES | {"VarHandleOp"}

PLAIN_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
"""Ops that only call one function."""


def leading_to(nodes: Mapping[str, Any], tensors: Iterable[str], *, fed: Collection[str] = ()) -> list[Any]:
    """The nodes that these tensors ("x", "x:0", "^x") need, in the order of `nodes`, up to the tensors `fed` ("x:0").

    Raises GraphError for an unknown node.
    """

    def names_of(tensors: Iterable[str]) -> Iterator[str]:
        for tensor in tensors:
            if full(tensor) not in fed:
                if node_of(tensor) not in nodes:
                    name = node_of(tensor)
                    raise GraphError(f"the graph has no node {name!r}, which the node of {tensor!r} should be")
                yield node_of(tensor)

    reached = reach(names_of(tensors), lambda name: names_of(nodes[name].input))
    return [node for name, node in nodes.items() if name in reached]


def with_functions(graph_def: Any, nodes: Iterable[Any]) -> Any:
    """A new GraphDef of these nodes of `graph_def` and the functions that they call."""
    result = tf.compat.v1.GraphDef(versions=graph_def.versions)
    result.node.extend(nodes)
    result.library.function.extend(functions_called(graph_def.library.function, result.node))
    return result


def definition(op: str) -> Any:
    """TensorFlow's OpDef of an op; None if it is unknown."""
    try:
        return _known_ops().op_def_for_type(op)
    except RuntimeError:
        return None


@cache
def _known_ops() -> tf.Graph:
    return tf.Graph()  # an empty graph knows all ops


def argument_counts(node: Any, arguments: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Each of `arguments`, an op's `input_arg` or `output_arg`, with its number of tensors in the node."""
    for argument in arguments:
        if argument.number_attr:
            yield argument, node.attr[argument.number_attr].i
        else:
            yield argument, len(node.attr[argument.type_list_attr].list.type) if argument.type_list_attr else 1


def argument_at(node: Any, arguments: Iterable[Any], place: int) -> tuple[Any, int] | None:
    """The argument of the tensor at this place among all, and the tensor's place within the argument."""
    for argument, count in argument_counts(node, arguments):
        if place < count:
            return argument, place
        place -= count
    return None


def port_of(node: Any, result: str, functions: Mapping[str, Any]) -> int:
    """The place of "result:position", a function's spelling, among all results of a node. Raises LookupError."""
    name, _, position = result.partition(":")
    op = functions[node.op].signature if node.op in functions else definition(node.op)
    port = int(position or 0)
    for argument, count in argument_counts(node, () if op is None else op.output_arg):
        if argument.name == name:
            return port
        port += count
    raise KeyError(f"{node.name}:{result}")


def become(node: Any, op: str, inputs: Iterable[str] = ()) -> Any:
    """Turn a node into another op of the same name, without attributes yet."""
    kept = list(inputs)
    name = node.name
    node.Clear()
    node.name, node.op = name, op
    node.input.extend(kept)
    return node


def become_constant(node: Any, value: object, dtype: tf.DType | None = None, control: Iterable[str] = ()) -> Any:
    """Turn a node into a constant, by default of the value's dtype."""
    become(node, "Const", control)
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
    node.attr["dtype"].type = node.attr["value"].tensor.dtype
    return node


def become_placeholder(node: Any, spec: tf.TensorSpec) -> Any:
    """Turn a node into a placeholder of this spec."""
    become(node, "Placeholder")
    node.attr["dtype"].type = spec.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(spec.shape.as_proto())
    return node


def prefix_frame(node: Any, prefix: str) -> None:
    """Rename the loop that a node enters: two loops of one name would run as one."""
    if "frame_name" in node.attr:
        node.attr["frame_name"].s = prefix.encode() + node.attr["frame_name"].s
