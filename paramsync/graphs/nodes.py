"""Nodes of GraphDefs: finds those that lead to a tensor, counts tensors, and rewrites a node as another op."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import full, functions_called, node_of, reach

PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
"""Those without a value of their own."""

PLAIN_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
"""Ops that call one function, and do nothing else."""


def leading_to(nodes: Mapping[str, Any], tensors: Iterable[str], *, fed: Collection[str] = ()) -> list[Any]:
    """The nodes that these tensors ("x", "x:0", "^x") need, in the order of `nodes`; not past those in `fed` ("x:0").

    Raises GraphError where a node is not there.
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
    """A new GraphDef of these nodes of it and of the functions that they call."""
    result = tf.compat.v1.GraphDef(versions=graph_def.versions)
    result.node.extend(nodes)
    result.library.function.extend(functions_called(graph_def.library.function, result.node))
    return result


def definition(op: str) -> Any:
    """TensorFlow's OpDef of an op, or None where it knows no such op."""
    try:
        return _known_ops().op_def_for_type(op)
    except RuntimeError:
        return None


@cache
def _known_ops() -> tf.Graph:
    return tf.Graph()  # which knows them all, and holds none


def counted(node: Any, arguments: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Each of `arguments`, an op's `input_arg` or `output_arg`, and how many tensors of the node it is."""
    for argument in arguments:
        if argument.number_attr:
            yield argument, node.attr[argument.number_attr].i
        else:
            yield argument, len(node.attr[argument.type_list_attr].list.type) if argument.type_list_attr else 1


def argument_at(node: Any, arguments: Iterable[Any], place: int) -> tuple[Any, int] | None:
    """The argument that the tensor at this place among all of them belongs to, and its place there."""
    for argument, count in counted(node, arguments):
        if place < count:
            return argument, place
        place -= count
    return None


def port_of(node: Any, result: str, functions: Mapping[str, Any]) -> int:
    """The place of "result:position", as functions spell it, among all tensors of a node. Raises LookupError."""
    name, _, position = result.partition(":")
    op = functions[node.op].signature if node.op in functions else definition(node.op)
    port = int(position or 0)
    for argument, count in counted(node, () if op is None else op.output_arg):
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
    """Turn a node into a constant. Without `dtype` it has the value's."""
    become(node, "Const", control)
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
    node.attr["dtype"].type = node.attr["value"].tensor.dtype
    return node


def become_placeholder(node: Any, spec: tf.TensorSpec) -> Any:
    """Turn a node into a placeholder of what the spec describes."""
    become(node, "Placeholder")
    node.attr["dtype"].type = spec.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(spec.shape.as_proto())
    return node


def prefix_frame(node: Any, prefix: str) -> None:
    """Rename the loop that a node enters: two loops of one name would run as one."""
    if "frame_name" in node.attr:
        node.attr["frame_name"].s = prefix.encode() + node.attr["frame_name"].s
