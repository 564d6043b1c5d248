"""A graph of TensorFlow 1 as it was found, and the Draft of what lies between some of its tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import variable_pb2

from paramsync.errors import GraphError
from paramsync.graphdef.reading import full, node_of
from paramsync.graphs.draft import Draft
from paramsync.graphs.lifting.cut import cut
from paramsync.graphs.lifting.purity import PRINTS
from paramsync.graphs.lifting.roles import is_seed
from paramsync.graphs.lifting.walks import leading_to, with_functions
from paramsync.graphs.safety.checks import check
from paramsync.graphs.safety.guards import guard
from paramsync.graphs.sources import saver_names, v1_tables
from paramsync.graphs.sources.traces import endpoint
from paramsync.graphs.sources.v1_tables import Foreign
from paramsync.v1 import graph_pb2

# What lifting takes away, or refuses and says why: of no harm to a process that only builds the graph
_VARIABLE_OPS = (
    *("Variable", "VariableV2", "VarHandleOp", "ReadVariableOp", "ResourceGather", "ResourceGatherNd"),
    *("VariableShape", "VarIsInitializedOp", "IsVariableInitialized", "RefIdentity", "RefEnter", "RefExit"),
    *("RefSwitch", "RefMerge", "RefNextIteration", "RefSelect", "TemporaryVariable", "DestroyTemporaryVariable"),
    *(
        "RngReadAndSkip",
        "Assign",
        "AssignAdd",
        "AssignSub",
        "AssignVariableOp",
        "AssignAddVariableOp",
        "AssignSubVariableOp",
    ),
)


@dataclass(frozen=True, slots=True)
class V1Graph:
    """The nodes of a graph, and what else is known of it.

    `saver` is the tensor that makes its Saver save ("": it is not known which; None: no Saver), `variables` are the
    VariableDefs of its collections, `fillers` the operations that fill its tables. `foreign` is None for a graph of
    this very program; any other is kept from running anything unsafe.
    """

    where: str
    graph_def: Any
    saver: str | None = None
    variables: Sequence[Any] = ()
    fillers: Collection[str] = ()
    foreign: Foreign | None = None
    _nodes: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph_def", v1_tables.modernised(self.graph_def))
        object.__setattr__(self, "_nodes", {node.name: node for node in self.graph_def.node})

    def node(self, tensor: str) -> Any:
        """The node of a tensor. Raises GraphError, which lists the placeholders there are."""
        found = self._nodes.get(node_of(tensor))
        if found is None:
            raise self.unknown(tensor)
        return found

    def unknown(self, tensor: str) -> GraphError:
        placeholders = [node.name for node in self.graph_def.node if node.op.startswith("Placeholder")]
        listed = f"{', '.join(placeholders[:20]) or 'none'}{' and more' if len(placeholders) > 20 else ''}"
        return GraphError(f"{self.where} has no tensor {tensor!r}; its placeholders: {listed}")

    def draft(self, signatures: Mapping[str, graph_pb2.Signature], *, unused_inputs: bool) -> Draft:
        """What the outputs of these signatures need. Outputs whose dtype is not said are looked at.

        Raises GraphError, which names what is unknown, and UnsafeGraphError for a foreign graph that needs what a
        program should not run for somebody else.
        """
        found = self._reached(signatures.values())
        if self.foreign is not None:
            allowed = (*self.foreign.allowed, *v1_tables.TABLES, *_VARIABLE_OPS, *PRINTS)
            check(with_functions(self.graph_def, found), allowed=allowed)
        if any(not one.dtype for signature in signatures.values() for one in signature.outputs):
            signatures = self._described(signatures, unused_inputs=unused_inputs)
        variables = saver_names.parameters(self._nodes, found, saver=self.saver, variables=self.variables)
        names = {one.node: self._nodes[one.node].attr["shared_name"].s.decode(errors="replace") for one in variables}
        seeds = {one.node: one.spec for one in variables if is_seed(names[one.node], one.spec)}
        return Draft(
            self.graph_def,
            [one for one in variables if one.node not in seeds],
            signatures,
            v1_tables.tables(self.graph_def, found, fillers=self.fillers, foreign=self.foreign),
            seeds,
            unused_inputs=unused_inputs,
        )

    def _reached(self, signatures: Iterable[graph_pb2.Signature]) -> list[Any]:
        names: set[str] = set()
        for signature in signatures:
            for one in (*signature.inputs, *signature.outputs):
                self.node(one.tensor)
            for one in signature.inputs:
                self._require_dtype(one)
            fed = {full(one.tensor) for one in signature.inputs}
            outputs = [one.tensor for one in signature.outputs]
            names.update(node.name for node in leading_to(self._nodes, outputs, fed=fed))
        return [node for node in self.graph_def.node if node.name in names]

    def _require_dtype(self, one: graph_pb2.Endpoint) -> None:
        try:
            tf.as_dtype(one.dtype)
        except TypeError as error:
            raise GraphError(f"{self.where}: input {one.name!r}, {one.tensor!r}, is of no dtype: {error}") from error

    def _described(
        self, signatures: Mapping[str, graph_pb2.Signature], *, unused_inputs: bool
    ) -> dict[str, graph_pb2.Signature]:
        """The signatures with the dtype and shape of each output, as TensorFlow infers them."""
        described = {}
        for name, signature in signatures.items():
            graph_def, placed = cut(self.graph_def, {name: signature}, ends=(), unused_inputs=unused_inputs)
            outputs = [one.tensor for one in placed[name].outputs]
            built = with_functions(graph_def, graph_def.node)
            guard(built)
            with tf.Graph().as_default():
                try:
                    results = tf.graph_util.import_graph_def(built, return_elements=outputs, name="")
                except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
                    raise GraphError(f"{self.where} holds a graph that cannot be imported: {error}") from error
            found = [
                endpoint(one.name, one.tensor, result.dtype.base_dtype.as_datatype_enum, result.shape.as_proto())
                for one, result in zip(signature.outputs, results, strict=True)
            ]
            described[name] = graph_pb2.Signature(
                inputs=signature.inputs, outputs=found, method_name=signature.method_name
            )
        return described


def variable_defs(contents: Iterable[bytes], where: str) -> list[Any]:
    """The entries of a collection of variables. Raises GraphError."""
    try:
        return [variable_pb2.VariableDef.FromString(one) for one in contents]
    except DecodeError as error:
        raise GraphError(f"{where} lists variables that are not readable: {error}") from error
