"""Partitioned v1 variables: checkpoints have the whole, so that is the parameter, and its parts are slices of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import control_inputs, data_inputs, fresh, node_of, origin
from paramsync.graphs.nodes import become, become_constant, become_placeholder


@dataclass(frozen=True, slots=True)
class PartRange:
    """Where a part lies in the whole of a partitioned variable."""

    whole: tuple[int, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A variable: its key in a checkpoint, and the node that gives its handle or reference.

    `spec` is of the value that the node stands for. Parts of one partitioned variable share its name.
    """

    name: str
    node: str
    spec: tf.TensorSpec
    part: PartRange | None = None


def join_parts(graph_def: Any, parameters: Iterable[Parameter]) -> tuple[dict[str, str], dict[str, tf.TensorSpec]]:
    """The node and the spec of each parameter by its name, once parts are made into wholes.

    A whole is a new placeholder, and its parts' placeholders become slices of it. Where the graph joins all parts
    again, it takes the whole. Raises GraphError for parts that are not of one whole.
    """
    nodes: dict[str, str] = {}
    specs: dict[str, tf.TensorSpec] = {}
    wholes: dict[str, list[tuple[str, PartRange, list[int]]]] = {}  # by name, the node, place and shape of each part
    for parameter in parameters:
        name, node, part = parameter.name, parameter.node, parameter.part
        spec = parameter.spec if part is None else tf.TensorSpec(part.whole, parameter.spec.dtype)
        if specs.setdefault(name, spec) != spec or (name in nodes and name not in wholes):
            raise GraphError(f"several variables are called {name!r} and are not parts of one: {nodes[name]}, {node}")
        nodes[name] = node
        if part is not None:
            wholes.setdefault(name, []).append((node, part, _shape_within(parameter, part)))
    if wholes:
        _slice(graph_def, nodes, specs, wholes)
    return nodes, specs


def _shape_within(parameter: Parameter, part: PartRange) -> list[int]:
    """The shape of a part. Raises GraphError where it is not known, or where the part lies outside of the whole."""
    if not parameter.spec.shape.is_fully_defined():
        raise GraphError(f"variable {parameter.node!r} is a part of {parameter.name!r}, and its shape is not known")
    shape = list(parameter.spec.shape)
    if not len(part.offsets) == len(shape) == len(part.whole) or not all(
        0 <= start <= start + length <= size
        for start, length, size in zip(part.offsets, shape, part.whole, strict=True)
    ):
        raise GraphError(
            f"variable {parameter.node!r}: expected a part of {parameter.name!r}, which has shape {list(part.whole)},"
            f" found shape {shape} at {list(part.offsets)}"
        )
    return shape


def _slice(
    graph_def: Any,
    placeholders: dict[str, str],
    specs: Mapping[str, tf.TensorSpec],
    wholes: Mapping[str, Sequence[tuple[str, PartRange, list[int]]]],
) -> None:
    nodes = {node.name: node for node in graph_def.node}
    owners: dict[str, str] = {}  # by the node of a part, the name of the whole

    def added(name: str) -> Any:
        name = fresh(name, nodes)
        nodes[name] = graph_def.node.add(name=name)
        return nodes[name]

    for name, parts in wholes.items():
        placeholders[name] = become_placeholder(added(f"{parts[0][0]}/whole"), specs[name]).name
        for node, part, shape in parts:
            owners[node] = name
            constants = [
                become_constant(added(f"{node}/{place}"), np.asarray(value, np.int64)).name
                for place, value in (("begin", part.offsets), ("size", shape))
            ]
            piece = become(nodes[node], "Slice", [placeholders[name], *constants])
            piece.attr["T"].type = specs[name].dtype.as_datatype_enum
            piece.attr["Index"].type = tf.int64.as_datatype_enum
    for node in list(nodes.values()):
        if node.op == "ConcatV2":  # of all the parts of a variable, in their order, it is the variable
            *joined, axis = data_inputs(node)
            joined = [origin(nodes, tensor) for tensor in joined]
            number = nodes.get(node_of(axis))
            name = owners.get(joined[0], "") if joined else ""
            if number is None or number.op != "Const" or not name or any(owners.get(part) != name for part in joined):
                continue
            places = {part: (list(place.offsets), shape) for part, place, shape in wholes[name]}
            along = int(tf.make_ndarray(number.attr["value"].tensor))
            if _is_whole(list(specs[name].shape), [places[part] for part in joined], along):
                become(node, "Identity", [placeholders[name], *control_inputs(node)])
                node.attr["T"].type = specs[name].dtype.as_datatype_enum


def _is_whole(sizes: list[int], parts: Sequence[tuple[list[int], list[int]]], axis: int) -> bool:
    """Whether these parts, their offsets and shapes, one after the other along this axis, are the whole."""
    if not -len(sizes) <= axis < len(sizes):
        return False
    end = 0
    for offsets, shape in parts:
        expected, whole = [0] * len(sizes), list(sizes)
        expected[axis], whole[axis] = end, shape[axis]
        if (offsets, shape) != (expected, whole):
            return False
        end += shape[axis]
    return end == sizes[axis]
