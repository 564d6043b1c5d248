"""Draft: what a source holds, before it is lifted: a graph whose variables are handles, and what they are called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from google.protobuf.message import EncodeError

from paramsync.errors import GraphError
from paramsync.graphs.graph import Graph
from paramsync.graphs.lifting.cut import cut
from paramsync.graphs.lifting.function_names import name_by_content
from paramsync.graphs.lifting.lift import lift
from paramsync.graphs.lifting.partitions import Piece, Whole, join
from paramsync.graphs.lifting.purity import purify
from paramsync.graphs.tables import pack
from paramsync.v1 import bundle_pb2, graph_pb2


@dataclass(frozen=True, slots=True)
class Part:
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
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A lookup table: the node that gives its handle, and its contents."""

    node: str
    keys: tf.Tensor
    values: tf.Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """A graph as it was found. Whatever does not lead to an output of a signature is of no interest.

    `seeds` are nodes that give the handle of a Keras SeedGenerator's state. Inputs of signatures may be any tensors of
    the graph; outputs must depend on each, unless `unused_inputs`. `called` is what the framework calls the variable of
    a parameter; `object_graph` gives, for names of parameters, what checkpoints of the object that has them say of it.
    `refused` says why signatures were left out that cannot be served.
    """

    graph_def: Any
    parameters: Sequence[Parameter]
    signatures: Mapping[str, graph_pb2.Signature]
    tables: Sequence[Table] = field(default=())
    seeds: Mapping[str, tf.TensorSpec] = field(default_factory=dict)
    unused_inputs: bool = False
    called: Mapping[str, str] = field(default_factory=dict)
    object_graph: Callable[[Collection[str]], bytes] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)


def finish(draft: Draft) -> Graph:
    """The pure function. Raises GraphError, which names what cannot be pure and why."""
    ends = {one.node for one in draft.parameters} | {one.node for one in draft.tables} | {*draft.seeds}
    graph_def, signatures = cut(draft.graph_def, draft.signatures, ends=ends, unused_inputs=draft.unused_inputs)
    reached = {node.name for node in graph_def.node}
    parameters = sorted((one for one in draft.parameters if one.node in reached), key=lambda one: one.name)
    tables = [one for one in draft.tables if one.node in reached]
    try:
        specs = {one.node: one.spec for one in parameters}
        lifted = lift(graph_def, specs, [one.node for one in tables], draft.seeds)
    except (IndexError, KeyError) as error:
        raise GraphError(f"the graph contradicts itself: {error}") from error
    purify(lifted)
    name_by_content(lifted)
    nodes, specs = _joined(lifted, parameters)
    return Graph(
        graph_pb2.Graph(
            graph_def=_serialized(lifted),
            parameters=[
                graph_pb2.Parameter(
                    name=name,
                    node=nodes[name],
                    dtype=spec.dtype.as_datatype_enum,
                    shape=bundle_pb2.TensorShape.FromString(spec.shape.as_proto().SerializeToString()),
                    variable=draft.called.get(name, ""),
                )
                for name, spec in specs.items()
            ],
            signatures=signatures,
            tables=[pack(one.node, one.keys, one.values) for one in tables],
            object_graph=b"" if draft.object_graph is None else draft.object_graph(specs),
        ),
        refused=draft.refused,
    )


def _joined(graph_def: Any, parameters: Sequence[Parameter]) -> tuple[dict[str, str], dict[str, tf.TensorSpec]]:
    """The node and the spec of each parameter by its name, in the order of names, once parts are made into wholes."""
    nodes: dict[str, str] = {}
    specs: dict[str, tf.TensorSpec] = {}
    pieces: dict[str, list[Piece]] = {}
    for one in parameters:
        spec = one.spec if one.part is None else tf.TensorSpec(one.part.whole, one.spec.dtype)
        if specs.setdefault(one.name, spec) != spec or (one.name in nodes and one.name not in pieces):
            raise GraphError(
                f"several variables are called {one.name!r} and are not parts of one: {nodes[one.name]}, {one.node}"
            )
        nodes[one.name] = one.node
        if one.part is not None:
            if not one.spec.shape.is_fully_defined():
                raise GraphError(f"variable {one.node!r} is a part of {one.name!r}, and its shape is not known")
            pieces.setdefault(one.name, []).append(Piece(one.node, one.part.offsets, tuple(one.spec.shape)))
    return nodes | join(graph_def, [Whole(name, specs[name], found) for name, found in pieces.items()]), specs


def _serialized(graph_def: Any) -> bytes:
    try:
        return bytes(graph_def.SerializeToString(deterministic=True))
    except (ValueError, EncodeError) as error:
        raise GraphError(f"the graph is too large; make variables of its large constants: {error}") from error
