"""Partitioned v1 variables: checkpoints know the whole, so the whole is the argument, and the parts are cut from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import fresh, node_of


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a variable: the placeholder that stands for it, where it begins in the whole, how large it is."""

    node: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """A variable that a graph has in parts."""

    name: str
    spec: tf.TensorSpec
    pieces: Sequence[Piece]

    def check(self) -> None:
        """Raises GraphError where a part lies outside of the whole."""
        sizes = tuple(self.spec.shape)
        for one in self.pieces:
            if (
                len(one.offsets) != len(sizes)
                or len(one.shape) != len(sizes)
                or not all(
                    0 <= start <= start + length <= size
                    for start, length, size in zip(one.offsets, one.shape, sizes, strict=True)
                )
            ):
                raise GraphError(
                    f"variable {one.node!r}: expected a part of {self.name!r}, which has shape {list(sizes)},"
                    f" found shape {list(one.shape)} at {list(one.offsets)}"
                )

    def is_joined(self, nodes: Sequence[str], axis: int) -> bool:
        """Whether these nodes, one after the other along this axis, are the whole."""
        sizes, end = list(self.spec.shape), 0
        if not -len(sizes) <= axis < len(sizes):
            return False
        by_node = {one.node: one for one in self.pieces}
        for node in nodes:
            start, shape = [0] * len(sizes), list(sizes)
            start[axis], shape[axis] = end, by_node[node].shape[axis]
            if (list(by_node[node].offsets), list(by_node[node].shape)) != (start, shape):
                return False
            end += shape[axis]
        return bool(end == sizes[axis])


def join(graph_def: Any, wholes: Sequence[Whole]) -> dict[str, str]:
    """Make one placeholder of each variable and slices of its parts' placeholders; returns its node by its name.

    Where the graph joins all parts again, it takes the whole. Raises GraphError for a part that lies outside.
    """
    nodes = {node.name: node for node in graph_def.node}
    found: dict[str, str] = {}
    owners: dict[str, Whole] = {}  # by the node of a part
    for whole in wholes:
        whole.check()
        node = _added(graph_def, nodes, f"{whole.pieces[0].node}/whole", "Placeholder")
        node.attr["dtype"].type = whole.spec.dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(whole.spec.shape.as_proto())
        found[whole.name] = node.name
        for one in whole.pieces:
            owners[one.node] = whole
            places = {"begin": one.offsets, "size": one.shape}
            constants = [_constant(graph_def, nodes, f"{one.node}/{name}", value) for name, value in places.items()]
            part = nodes[one.node]
            part.op = "Slice"
            part.attr.clear()
            part.input.extend([node.name, *constants])
            part.attr["T"].type = whole.spec.dtype.as_datatype_enum
            part.attr["Index"].type = tf.int64.as_datatype_enum
    for node in list(nodes.values()) if owners else []:
        if node.op == "ConcatV2":
            _take_whole(nodes, node, owners, found)
    return found


def _take_whole(nodes: Mapping[str, Any], node: Any, owners: Mapping[str, Whole], wholes: Mapping[str, str]) -> None:
    """Let a concatenation of all the parts of a variable, in their order, be the variable."""
    *joined, axis = [one for one in node.input if not one.startswith("^")]
    parts = [_source(nodes, one) for one in joined]
    number = nodes.get(node_of(axis))
    if number is None or number.op != "Const" or not all(one in owners for one in parts):
        return
    whole = owners[parts[0]]
    if any(owners[one] is not whole for one in parts):
        return
    if whole.is_joined(parts, int(tf.make_ndarray(number.attr["value"].tensor))):
        control = [one for one in node.input if one.startswith("^")]
        del node.input[:]
        node.input.extend([wholes[whole.name], *control])
        node.op = "Identity"
        node.attr.clear()
        node.attr["T"].type = whole.spec.dtype.as_datatype_enum


def _source(nodes: Mapping[str, Any], tensor: str) -> str:
    """The node whose value a tensor is."""
    name, seen = node_of(tensor), set[str]()
    while name in nodes and nodes[name].op == "Identity" and name not in seen:
        seen.add(name)
        name = node_of(nodes[name].input[0])
    return name


def _added(graph_def: Any, nodes: dict[str, Any], name: str, op: str) -> Any:
    found = fresh(name, nodes)
    nodes[found] = graph_def.node.add(name=found, op=op)
    return nodes[found]


def _constant(graph_def: Any, nodes: dict[str, Any], name: str, value: Sequence[int]) -> str:
    node = _added(graph_def, nodes, name, "Const")
    node.attr["dtype"].type = tf.int64.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.asarray(value, np.int64)))
    return str(node.name)
