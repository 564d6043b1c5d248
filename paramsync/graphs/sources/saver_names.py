"""Reads the keys of variables, and the places of parts of partitioned variables, from the nodes of a v1 Saver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import node_of, origin, reach
from paramsync.graphs.draft import Parameter, PartRange
from paramsync.graphs.nodes import VARIABLES

_PASSES = frozenset({"Identity", "ReadVariableOp", "RefIdentity"})  # between a variable and what saves it
_Saved = tuple[str, PartRange | None]


def parameters(
    nodes: Mapping[str, Any], wanted: Iterable[Any], *, saver: str | None, variables: Iterable[Any] = ()
) -> list[Parameter]:
    """The variables among the nodes `wanted`, by their keys in the checkpoint.

    `saver` is the tensor that makes a Saver save ("" for any Saver of the graph, None for no Saver). Other variables
    have the name and place in their VariableDef in `variables`, or else the name of their node. Raises GraphError.
    """
    saved = {variable.variable_name.removesuffix(":0"): _defined(variable) for variable in variables}
    saved |= {} if saver is None else _saved(nodes, saver)
    return [_parameter(node, saved.get(node.name, (node.name, None))) for node in wanted if node.op in VARIABLES]


def saved_by(nodes: Mapping[str, Any], saver: str) -> list[Parameter]:
    """All variables that a Saver saves, by their keys; `saver` is the tensor that makes it save. Raises GraphError."""
    return parameters(nodes, [nodes[name] for name in _saved(nodes, saver)], saver=saver)


def _parameter(node: Any, saved: _Saved) -> Parameter:
    name, part = saved
    try:
        spec = tf.TensorSpec(tf.TensorShape(node.attr["shape"].shape), tf.as_dtype(node.attr["dtype"].type))
    except (TypeError, ValueError) as error:
        raise GraphError(f"variable {node.name!r} has no shape or dtype that could be: {error}") from error
    if part is not None and spec.shape.rank not in (None, len(part.whole)):
        raise GraphError(f"variable {node.name!r} of shape {spec.shape} is saved as a part of {list(part.whole)}")
    return Parameter(name=name, node=node.name, spec=spec, part=part)


def _defined(variable: Any) -> _Saved:
    if not variable.HasField("save_slice_info_def"):
        return variable.variable_name.removesuffix(":0"), None
    info = variable.save_slice_info_def
    return info.full_name, PartRange(whole=tuple(info.full_shape), offsets=tuple(info.var_offset))


def _saved(nodes: Mapping[str, Any], saver: str) -> dict[str, _Saved]:
    """The key and place by which SaveV2 writes each variable, by node; the first SaveV2 counts."""
    saved: dict[str, _Saved] = {}
    for node in _saving(nodes, saver):
        _, names, places, *tensors = node.input
        listed = zip(tensors, _words(nodes, names, len(tensors)), _words(nodes, places, len(tensors)), strict=True)
        for tensor, name, place in listed:
            variable = origin(nodes, tensor, _PASSES)
            if variable in nodes and nodes[variable].op in VARIABLES:
                saved.setdefault(variable, (name, _part(place) if place else None))
    return saved


def _saving(nodes: Mapping[str, Any], saver: str) -> list[Any]:
    """The nodes that write a checkpoint."""

    def before(name: str) -> Iterable[str]:
        saves = name not in nodes or nodes[name].op == "SaveV2"  # not the nodes that compute the saved values
        return () if saves else map(node_of, nodes[name].input)

    reached = reach([node_of(saver)], before) if saver else nodes
    return [node for node in nodes.values() if node.name in reached and node.op == "SaveV2"]


def _words(nodes: Mapping[str, Any], tensor: str, count: int) -> Sequence[str]:
    """The strings of a constant; the last string is repeated for those left out, as in any TensorProto."""
    node = nodes.get(node_of(tensor))
    words = list(node.attr["value"].tensor.string_val) if node is not None and node.op == "Const" else []
    if not 0 < len(words) <= count:
        raise GraphError(f"{tensor!r} should list {count} names or places of variables for a Saver, and does not")
    return [word.decode(errors="backslashreplace") for word in words + words[-1:] * (count - len(words))]


def _part(place: str) -> PartRange:
    """Parse SaveV2's shape and slice: the sizes of the whole, then offset and size by dimension, "6 2 0,3:0,2"."""
    *sizes, extents = place.split(" ")
    try:
        starts = [0 if extent == "-" else int(extent.split(",")[0]) for extent in extents.split(":")]
        part = PartRange(whole=tuple(map(int, sizes)), offsets=tuple(starts))
    except ValueError as error:
        raise GraphError(f"a Saver says of a part of a variable that it lies at {place!r}") from error
    if len(part.whole) != len(part.offsets):
        raise GraphError(f"a Saver says that a part begins at {list(part.offsets)} of {list(part.whole)}")
    return part
