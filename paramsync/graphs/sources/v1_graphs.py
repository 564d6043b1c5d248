"""Drafts of TensorFlow 1 graphs between given tensors, and the names of their variables in checkpoints.

The code that built the graphs is not needed. The nodes of a Saver contain the keys of variables, and the places of
parts of partitioned variables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import variable_pb2

from paramsync.errors import GraphError
from paramsync.graphdef.reading import full, node_of, origin, reach
from paramsync.graphs.draft import Draft, Parameter, PartRange
from paramsync.graphs.lifting.roles import PRINTS, is_seed
from paramsync.graphs.nodes import VARIABLES, leading_to, with_functions
from paramsync.graphs.safety import check
from paramsync.graphs.sources.structures import components, endpoint_of
from paramsync.graphs.sources.table_contents import TABLES, Foreign, v1_tables
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.v1 import graph_pb2

# Ops that lifting removes or refuses. They may pass the check for safe ops, because they do no harm while the graph is
# only built.
_VARIABLE_OPS = """
    Variable VariableV2 VarHandleOp ReadVariableOp ResourceGather ResourceGatherNd VariableShape VarIsInitializedOp
    IsVariableInitialized RefIdentity RefEnter RefExit RefSwitch RefMerge RefNextIteration RefSelect TemporaryVariable
    DestroyTemporaryVariable RngReadAndSkip Assign AssignAdd AssignSub AssignVariableOp AssignAddVariableOp
    AssignSubVariableOp
"""


def draft_of_tensors(inputs: Any, outputs: Any, *, saver: Any = None) -> Draft:
    """Draft the part of a live graph between these tensors. The live graph is not changed. Raises GraphError.

    `inputs` and `outputs` are single tensors, sequences, or tensors by the names that callers use. A tensor in a
    sequence keeps its own name; a sparse or ragged tensor counts as several tensors. Parameters have the names that
    `saver`, a tf.compat.v1.train.Saver of the graph, gives them, or without `saver` the default names of a Saver.
    """
    starts, ends = dict(_named(inputs, "inputs")), dict(_named(outputs, "outputs"))
    if not ends:
        raise GraphError("outputs: expected at least one tensor of a v1 graph, found none")
    graphs = {id(tensor.graph): tensor.graph for tensor in (*starts.values(), *ends.values())}
    if len(graphs) != 1:
        raise GraphError(f"inputs and outputs: expected tensors of one graph, found some of {len(graphs)}")
    graph = _of_live(next(iter(graphs.values())), saver)
    signature = graph_pb2.Signature(
        inputs=[endpoint_of(name, tensor.name, tensor) for name, tensor in starts.items()],
        outputs=[endpoint_of(name, tensor.name, tensor) for name, tensor in ends.items()],
    )
    return graph.draft({DEFAULT_SIGNATURE: signature}, unused_inputs=False)


@dataclass
class V1Graph:
    """The nodes of a graph, with its Saver, variables and tables.

    - `saver` is the tensor whose evaluation makes the graph's Saver save: "" for any Saver, None for no Saver.
    - `variables` are the VariableDefs in the graph's collections, `fillers` the operations that fill its tables.
    - `foreign` is None for a graph of this program. A foreign graph is checked before any part of it runs.
    """

    where: str
    graph_def: Any
    saver: str | None = None
    variables: Sequence[Any] = ()
    fillers: Collection[str] = ()
    foreign: Foreign | None = None

    def __post_init__(self) -> None:
        self._nodes = {node.name: node for node in self.graph_def.node}

    def node(self, tensor: str) -> Any:
        """Return the node of a tensor. Raises GraphError, which lists the placeholders."""
        if node_of(tensor) not in self._nodes:
            raise self.unknown(tensor)
        return self._nodes[node_of(tensor)]

    def unknown(self, tensor: str) -> GraphError:
        placeholders = [node.name for node in self.graph_def.node if node.op.startswith("Placeholder")]
        listed = f"{', '.join(placeholders[:20]) or 'none'}{' and more' if len(placeholders) > 20 else ''}"
        return GraphError(f"{self.where} has no tensor {tensor!r}; its placeholders: {listed}")

    def draft(self, signatures: Mapping[str, graph_pb2.Signature], *, unused_inputs: bool) -> Draft:
        """Draft these signatures. Dtypes of outputs may be left out.

        Raises GraphError for an unknown tensor, and UnsafeGraphError for a foreign graph with unsafe ops.
        """
        reached = self._reach(signatures.values())
        if self.foreign is not None:
            allowed = (*self.foreign.allowed, *TABLES, *_VARIABLE_OPS.split(), *PRINTS)
            check(with_functions(self.graph_def, reached), allowed=allowed)
        variables = parameters(self._nodes, reached, saver=self.saver, variables=self.variables)
        seeds = {
            variable.node: variable.spec
            for variable in variables
            if is_seed(self._nodes[variable.node].attr["shared_name"].s.decode(errors="replace"), variable.spec)
        }
        return Draft(
            self.graph_def,
            [variable for variable in variables if variable.node not in seeds],
            signatures,
            v1_tables(self.graph_def, reached, fillers=self.fillers, foreign=self.foreign),
            seeds,
            unused_inputs=unused_inputs,
        )

    def _reach(self, signatures: Iterable[graph_pb2.Signature]) -> list[Any]:
        names: set[str] = set()
        for signature in signatures:
            for end in (*signature.inputs, *signature.outputs):
                self.node(end.tensor)
            for end in signature.inputs:
                try:
                    tf.as_dtype(end.dtype)
                except TypeError as error:
                    what = f"input {end.name!r}, {end.tensor!r}"
                    raise GraphError(f"{self.where}: {what}, is of no dtype: {error}") from error
            fed = {full(end.tensor) for end in signature.inputs}
            outputs = [end.tensor for end in signature.outputs]
            names.update(node.name for node in leading_to(self._nodes, outputs, fed=fed))
        return [node for node in self.graph_def.node if node.name in names]


def variable_defs(contents: Iterable[bytes], where: str) -> list[Any]:
    """Parse the entries of a collection of variables. Raises GraphError."""
    try:
        return list(map(variable_pb2.VariableDef.FromString, contents))
    except DecodeError as error:
        raise GraphError(f"{where} lists variables that are not readable: {error}") from error


def _of_live(graph: tf.Graph, saver: Any) -> V1Graph:
    keys = tf.compat.v1.GraphKeys
    try:
        graph_def = graph.as_graph_def()
    except ValueError as error:
        raise GraphError(f"the graph is too large, make variables of its constants: {error}") from error
    variables = [*graph.get_collection(keys.GLOBAL_VARIABLES), *graph.get_collection(keys.LOCAL_VARIABLES)]
    with graph.as_default():  # `to_proto` works only inside the graph of the variable
        definitions = [variable.to_proto() for variable in variables if hasattr(variable, "to_proto")]
    return V1Graph(
        "the graph",
        graph_def,
        saver=None if saver is None else saver.as_saver_def().save_tensor_name,
        variables=definitions,
        fillers=[operation.name for operation in graph.get_collection(keys.TABLE_INITIALIZERS)],
    )


def _named(tensors: Any, what: str) -> Iterator[tuple[str, tf.Tensor]]:
    """Yield every tensor, with the name that callers use. Raises GraphError."""
    seen = set()
    if isinstance(tensors, Mapping):
        pairs = list(tensors.items())
    else:
        pairs = [(None, tensor) for tensor in (tensors if isinstance(tensors, list | tuple) else [tensors])]
    for label, value in pairs:
        try:
            parts = tf.nest.flatten(value, expand_composites=True)
            own = parts[0].op.name if len(parts) > 1 else parts[0].name.removesuffix(":0")
            names = components(label or own, value) if len(parts) > 1 else [label or own]
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise GraphError(f"{what}: expected tensors of a v1 graph, found {value!r}") from error
        for name, part in zip(names, parts, strict=True):
            if not isinstance(part, tf.Tensor):
                raise GraphError(f"{what}: expected tensors of a v1 graph, found {value!r}")
            if name in seen:
                raise GraphError(f"{what}: expected each name once, found {name!r} twice")
            seen.add(name)
            yield name, part


# The names of variables in checkpoints -------------------------------------------------------------------------------

_PASSES = frozenset({"Identity", "ReadVariableOp", "RefIdentity"})  # ops between a variable and its SaveV2
_Saved = tuple[str, PartRange | None]


def parameters(
    nodes: Mapping[str, Any], wanted: Iterable[Any], *, saver: str | None, variables: Iterable[Any] = ()
) -> list[Parameter]:
    """Return the variables among the nodes `wanted`, with their keys in the checkpoint. Raises GraphError.

    The keys come from the nodes of a Saver; `saver` is as in V1Graph. A variable that this Saver does not save gets the
    name in its VariableDef in `variables`; without a VariableDef it gets the name of its node.
    """
    saved = {variable.variable_name.removesuffix(":0"): _defined(variable) for variable in variables}
    saved |= {} if saver is None else _saved(nodes, saver)
    return [_parameter(node, saved.get(node.name, (node.name, None))) for node in wanted if node.op in VARIABLES]


def saved_by(nodes: Mapping[str, Any], saver: str) -> list[Parameter]:
    """Return all variables that a Saver saves, with their keys. `saver` is as in V1Graph. Raises GraphError."""
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
    """Return, by the node of each variable, the key and the part that the variable's first SaveV2 writes."""
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
    """Return the SaveV2 nodes that the tensor `saver` runs; all SaveV2 nodes for ""."""

    def before(name: str) -> Iterable[str]:
        saves = name not in nodes or nodes[name].op == "SaveV2"  # stop here: the inputs compute the saved values
        return () if saves else map(node_of, nodes[name].input)

    reached = reach([node_of(saver)], before) if saver else nodes
    return [node for node in nodes.values() if node.name in reached and node.op == "SaveV2"]


def _words(nodes: Mapping[str, Any], tensor: str, count: int) -> Sequence[str]:
    """Return `count` strings of a constant. As in any TensorProto, the last string is repeated if some are missing."""
    node = nodes.get(node_of(tensor))
    words = list(node.attr["value"].tensor.string_val) if node is not None and node.op == "Const" else []
    if not 0 < len(words) <= count:
        raise GraphError(f"{tensor!r} should list {count} names or places of variables for a Saver, and does not")
    return [word.decode(errors="backslashreplace") for word in words + words[-1:] * (count - len(words))]


def _part(place: str) -> PartRange:
    """Parse SaveV2's shape and slice, such as "6 2 0,3:0,2".

    The sizes of the whole variable come first, then for each dimension the offset and the size of the part.
    """
    *sizes, extents = place.split(" ")
    try:
        starts = [0 if extent == "-" else int(extent.split(",")[0]) for extent in extents.split(":")]
        part = PartRange(whole=tuple(map(int, sizes)), offsets=tuple(starts))
    except ValueError as error:
        raise GraphError(f"a Saver says of a part of a variable that it lies at {place!r}") from error
    if len(part.whole) != len(part.offsets):
        raise GraphError(f"a Saver says that a part begins at {list(part.offsets)} of {list(part.whole)}")
    return part
