"""Draft: a graph as a source has it, its variables still handles; finish() lifts it to a Graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from google.protobuf.message import EncodeError

from paramsync.errors import GraphError
from paramsync.graphs.digest import name_by_content
from paramsync.graphs.graph import Graph
from paramsync.graphs.lifting.cut import cut
from paramsync.graphs.lifting.lift import lift
from paramsync.graphs.lifting.partitions import Parameter, PartRange, join_parts
from paramsync.graphs.lifting.purity import purify
from paramsync.v1 import bundle_pb2, graph_pb2

__all__ = ["Draft", "Parameter", "PartRange", "finish"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A graph as its source has it. Nodes that lead to no output of a signature are ignored.

    `tables` are packed, each by the node that gives its handle. `seeds` are nodes that give the handle of a Keras
    SeedGenerator's state. Inputs of signatures may be any tensors of the graph; outputs must depend on each, unless
    `unused_inputs`. `called` is what the framework calls the variable of a parameter; `object_graph` gives, for names
    of parameters, what checkpoints of the object that has them say of it. `refused` says why signatures were left out
    that cannot be served.
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
    """Lift a draft to a pure function. Raises GraphError, which names what cannot be pure and why."""
    ends = {variable.node for variable in draft.parameters} | {table.node for table in draft.tables} | {*draft.seeds}
    graph_def, signatures = cut(draft.graph_def, draft.signatures, ends=ends, unused_inputs=draft.unused_inputs)
    reached = {node.name for node in graph_def.node}
    parameters = [variable for variable in draft.parameters if variable.node in reached]
    parameters.sort(key=lambda variable: variable.name)
    tables = [table for table in draft.tables if table.node in reached]
    try:
        by_node = {parameter.node: parameter.spec for parameter in parameters}
        lifted = lift(graph_def, by_node, [table.node for table in tables], draft.seeds)
    except (IndexError, KeyError) as error:
        raise GraphError(f"the graph contradicts itself: {error}") from error
    purify(lifted)
    name_by_content(lifted)
    nodes, specs = join_parts(lifted, parameters)
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
                    shape=bundle_pb2.TensorShape.FromString(spec.shape.as_proto().SerializeToString()),
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
