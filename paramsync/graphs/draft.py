"""Draft: a graph as read from its source, still with variables. finish() makes a pure function of it, a Graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import EncodeError

from paramsync.errors import GraphError
from paramsync.graphdef.reading import control_inputs, data_inputs, fresh, node_of, origin
from paramsync.graphs.digest import name_by_content
from paramsync.graphs.graph import Graph
from paramsync.graphs.lifting.cut import cut
from paramsync.graphs.lifting.lift import lift
from paramsync.graphs.lifting.roles import purify
from paramsync.graphs.nodes import become, become_constant, become_placeholder
from paramsync.graphs.safety import guard
from paramsync.v1 import bundle_pb2, graph_pb2


@dataclass(frozen=True, slots=True)
class PartRange:
    """The place of a part in a partitioned variable."""

    whole: tuple[int, ...]  # the shape of the whole variable
    offsets: tuple[int, ...]  # where the part begins in each dimension


@dataclass(frozen=True, slots=True)
class Parameter:
    """A variable: its key in a checkpoint, the node of its handle or reference, and the spec of its value.

    The parts of a partitioned variable share the variable's name.
    """

    name: str
    node: str
    spec: tf.TensorSpec
    part: PartRange | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A graph as read from its source, before it becomes a pure function.

    - `graph_def` may have nodes that no output of a signature needs. They are ignored.
    - `tables` are lookup tables with their contents. `seeds` are the states of Keras SeedGenerators, by node.
    - An input of a signature may be any tensor. At least one output must depend on each input, unless `unused_inputs`
      is set. Missing dtypes of outputs are inferred.
    - `called` maps a parameter to the framework's name of its variable. `object_graph(names)` makes the object graph
      for a checkpoint of the parameters with these names.
    - `refused` has the reason for each signature that was left out because it cannot be served.
    """

    graph_def: Any
    parameters: Sequence[Parameter]
    signatures: Mapping[str, graph_pb2.Signature]
    tables: Sequence[graph_pb2.Table] = field(default=())
    seeds: Mapping[str, tf.TensorSpec] = field(default_factory=dict)
    unused_inputs: bool = False
    called: Mapping[str, str] = field(default_factory=dict)
    object_graph: Callable[[Collection[str]], bytes] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)


def finish(draft: Draft) -> Graph:
    """Turn a draft into a pure function. Raises GraphError, which names an op that prevents this, and the reason."""
    ends = {variable.node for variable in draft.parameters} | {table.node for table in draft.tables} | {*draft.seeds}
    graph_def, signatures = cut(draft.graph_def, draft.signatures, ends=ends, unused_inputs=draft.unused_inputs)
    reached = {node.name for node in graph_def.node}
    parameters = [variable for variable in draft.parameters if variable.node in reached]
    parameters.sort(key=lambda variable: variable.name)
    tables = [table for table in draft.tables if table.node in reached]
    try:
        by_node = {parameter.node: parameter.spec for parameter in parameters}
        lifted = lift(graph_def, by_node, [table.node for table in tables], draft.seeds)
        purify(lifted)
    except (IndexError, KeyError) as error:
        raise GraphError(f"the graph contradicts itself: {error}") from error
    except RecursionError as error:
        raise GraphError("functions of the graph call themselves, or are nested too deep") from error
    name_by_content(lifted)
    nodes, specs = join_parts(lifted, parameters)
    _describe_outputs(lifted, signatures)
    try:
        content = lifted.SerializeToString(deterministic=True)
    except (ValueError, EncodeError) as error:
        raise GraphError(f"the graph is too large; make variables of its large constants: {error}") from error
    return Graph(
        graph_pb2.Graph(
            graph_def=content,
            parameters=[
                graph_pb2.Parameter(
                    name=name,
                    node=nodes[name],
                    dtype=spec.dtype.as_datatype_enum,
                    shape=_shape(spec.shape),
                    variable=draft.called.get(name, ""),
                )
                for name, spec in specs.items()
            ],
            signatures=signatures,
            tables=tables,
            object_graph=b"" if draft.object_graph is None else draft.object_graph(specs),
        ),
        refused=draft.refused,
    )


def _describe_outputs(graph_def: Any, signatures: Mapping[str, graph_pb2.Signature]) -> None:
    """Infer the missing dtypes and shapes of outputs. Raises GraphError if the graph cannot be imported."""
    ends = [end for signature in signatures.values() for end in signature.outputs if not end.dtype]
    if not ends:
        return
    built = tf.compat.v1.GraphDef()
    built.CopyFrom(graph_def)
    guard(built)
    with tf.Graph().as_default():
        try:
            results = tf.graph_util.import_graph_def(built, return_elements=[end.tensor for end in ends], name="")
        except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
            raise GraphError(f"the graph cannot be imported: {error}") from error
    for end, result in zip(ends, results, strict=True):
        end.dtype = result.dtype.as_datatype_enum
        end.shape.CopyFrom(_shape(result.shape))


def _shape(shape: tf.TensorShape) -> bundle_pb2.TensorShape:
    return bundle_pb2.TensorShape.FromString(shape.as_proto().SerializeToString())


# Partitioned variables ------------------------------------------------------------------------------------------------
# A checkpoint contains the whole variable. So the whole variable becomes the parameter, and its parts become slices.

_Part = tuple[str, PartRange, list[int]]  # the node of a part, its place in the whole, and its shape


def join_parts(graph_def: Any, parameters: Iterable[Parameter]) -> tuple[dict[str, str], dict[str, tf.TensorSpec]]:
    """Join the parts of each partitioned variable. Returns the node and the spec of each parameter, by name.

    The whole variable gets a new placeholder, and the placeholders of the parts become slices of it. A node that
    concatenates all parts is replaced by the whole variable. Raises GraphError if variables with the same name are not
    parts of one variable.
    """
    nodes: dict[str, str] = {}
    specs: dict[str, tf.TensorSpec] = {}
    wholes: dict[str, list[_Part]] = {}
    for parameter in parameters:
        name, node, part = parameter.name, parameter.node, parameter.part
        spec = parameter.spec if part is None else tf.TensorSpec(part.whole, parameter.spec.dtype)
        if specs.setdefault(name, spec) != spec or (name in nodes and name not in wholes):
            raise GraphError(f"several variables are called {name!r} and are not parts of one: {nodes[name]}, {node}")
        nodes[name] = node
        if part is not None:
            wholes.setdefault(name, []).append((node, part, _shape_of_part(parameter, part)))
    if wholes:
        _slice(graph_def, nodes, specs, wholes)
    return nodes, specs


def _shape_of_part(parameter: Parameter, part: PartRange) -> list[int]:
    """Return the shape of a part. Raises GraphError if the shape is unknown, or the part is not within the whole."""
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
    graph_def: Any, placeholders: dict[str, str], specs: Mapping[str, tf.TensorSpec], wholes: Mapping[str, list[_Part]]
) -> None:
    """Make a placeholder for each partitioned variable, and turn the parts into slices of the placeholder."""
    nodes = {node.name: node for node in graph_def.node}
    owners: dict[str, str] = {}  # the whole variable's name, by the node of a part

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
    for node in [node for node in nodes.values() if node.op == "ConcatV2"]:
        *joined, axis = data_inputs(node)
        joined = [origin(nodes, tensor) for tensor in joined]
        number = nodes.get(node_of(axis))
        name = owners.get(joined[0], "") if joined else ""
        if number is None or number.op != "Const" or not name or any(owners.get(part) != name for part in joined):
            continue
        places = {part: (list(place.offsets), shape) for part, place, shape in wholes[name]}
        along = int(tf.make_ndarray(number.attr["value"].tensor))
        if _make_whole(list(specs[name].shape), [places[part] for part in joined], along):
            become(node, "Identity", [placeholders[name], *control_inputs(node)])
            node.attr["T"].type = specs[name].dtype.as_datatype_enum


def _make_whole(sizes: list[int], parts: Sequence[tuple[list[int], list[int]]], axis: int) -> bool:
    """Return whether these parts (offsets and shape), concatenated along the axis, make up the whole variable."""
    if not -len(sizes) <= axis < len(sizes):
        return False
    *starts, _ = accumulate((shape[axis] for _, shape in parts), initial=0)
    in_order = [offsets[axis] for offsets, _ in parts] == starts
    return in_order and sum(math.prod(shape) for _, shape in parts) == math.prod(sizes)
