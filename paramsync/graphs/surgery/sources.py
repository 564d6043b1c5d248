"""Opens sources of connect(): imports a .meta file, a MetaGraphDef or a Graph into a new tf.Graph.

A live tf.Graph is used as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import control_flow_pb2

from paramsync.errors import GraphError
from paramsync.graphdef.reading import every_node, node_of, reach, readers_of
from paramsync.graphs.graph import Graph
from paramsync.graphs.nodes import VARIABLES, definition
from paramsync.graphs.sources.meta_graphs import read_meta
from paramsync.graphs.sources.v1_graphs import parameters
from paramsync.graphs.specs import DEFAULT_SIGNATURE, Shape, from_proto
from paramsync.graphs.surgery.functions import refuse_gradients
from paramsync.graphs.surgery.variables import saved_as
from paramsync.graphs.tables import Contents
from paramsync.host.files import shown

_OBJECT_BASED = "/.ATTRIBUTES/VARIABLE_VALUE"
_NOT_TRAINED = re.compile(r"(^|/)moving_")  # names of statistics that layers keep


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """The graph of a source.

    `inputs` and `outputs` map names in signatures to names of tensors. `keys` maps operations of variables to their
    keys in checkpoints.
    """

    graph: tf.Graph
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Maps each node that could not be imported to the unknown op that it needs."""

    def tensor(self, name: str) -> tf.Tensor | None:
        """Look up a tensor by its name in a signature or the graph; None for an unknown name.

        Raises GraphError if the tensor's node was left out of the import.
        """
        name = self.inputs.get(name, self.outputs.get(name, name))
        if op := self.left_out.get(node_of(name)):
            raise GraphError(
                f"{name!r} needs the op {op}, which TensorFlow does not know here: import what registers it"
            )
        try:
            return self.graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
        except (KeyError, ValueError):
            return None

    def label(self, tensor: tf.Tensor) -> str:
        """Return the tensor's name in a signature; without a signature, its name in the graph."""
        named = {spelled: name for name, spelled in [*self.inputs.items(), *self.outputs.items()]}
        return str(named.get(tensor.name, tensor.name.removesuffix(":0")))

    def saved_as(self, name: str, variable: tf.Variable) -> tuple[str, tf.TensorShape]:
        """Return the key of a variable in the checkpoint, and its shape there."""
        key, shape = saved_as(name, variable)
        return self.keys.get(name, key), shape

    def ends(self) -> list[tf.Tensor]:
        """Return the outputs of the source's signatures."""
        return [tensor for name in self.outputs if (tensor := self.tensor(name)) is not None]


def source_of(source: Any) -> ImportedGraph:
    """Import a source. Raises GraphError if it cannot be connected, UnfinishedMetaError for an incomplete file."""
    if isinstance(source, Graph):
        return _of_graph(source)
    if isinstance(source, tf.Graph):
        return ImportedGraph(source)
    if isinstance(source, tf.compat.v1.MetaGraphDef):
        return _of_meta(source, "the meta graph")
    if isinstance(source, (str, Path)) and source != "":
        return _of_meta(read_meta(Path(source)), str(source))
    raise GraphError(
        f"sources: expected a .meta file, a MetaGraphDef, a tf.Graph or a Graph to connect, found {shown(source)}"
    )


def _of_meta(meta: Any, where: str) -> ImportedGraph:
    graph = tf.Graph()
    own = tf.compat.v1.MetaGraphDef.FromString(meta.SerializeToString())
    left_out = _leave_out_unknown_ops(own)
    refuse_gradients(every_node(own.graph_def))
    try:
        with graph.as_default():
            tf.compat.v1.train.import_meta_graph(own)
    except (ValueError, KeyError, TypeError, tf.errors.OpError) as error:
        raise GraphError(f"{where} holds a graph that cannot be imported: {error}") from error
    nodes = {node.name: node for node in meta.graph_def.node}
    variables = [node for node in nodes.values() if node.op in VARIABLES]
    saver = meta.saver_def.save_tensor_name if meta.HasField("saver_def") else None
    signatures = list(meta.signature_def.values())
    return ImportedGraph(
        graph,
        inputs={name: info.name for signature in signatures for name, info in signature.inputs.items()},
        outputs={name: info.name for signature in signatures for name, info in signature.outputs.items()},
        keys={parameter.node: parameter.name for parameter in parameters(nodes, variables, saver=saver)},
        left_out=left_out,
    )


_KEYS = tf.compat.v1.GraphKeys
_PROTOS = {
    _KEYS.GLOBAL_VARIABLES: variable_pb2.VariableDef,
    _KEYS.LOCAL_VARIABLES: variable_pb2.VariableDef,
    _KEYS.MODEL_VARIABLES: variable_pb2.VariableDef,
    _KEYS.TRAINABLE_VARIABLES: variable_pb2.VariableDef,
    _KEYS.MOVING_AVERAGE_VARIABLES: variable_pb2.VariableDef,
    _KEYS.WHILE_CONTEXT: control_flow_pb2.WhileContextDef,
    _KEYS.COND_CONTEXT: control_flow_pb2.CondContextDef,
}


def _leave_out_unknown_ops(meta: Any) -> dict[str, str]:
    """Remove nodes of unknown ops, and nodes that need them, from a MetaGraphDef and its collections.

    Returns the names of the removed nodes, each with the unknown op that it needs.
    """
    functions = {function.signature.name for function in meta.graph_def.library.function}
    unknown = [node for node in meta.graph_def.node if node.op not in functions and definition(node.op) is None]
    if not unknown:
        return {}
    readers = readers_of(meta.graph_def.node)
    left_out: dict[str, str] = {}
    for node in unknown:
        for name in reach([node.name], lambda name: readers.get(name, ())):
            left_out.setdefault(name, node.op)
    kept = [node for node in meta.graph_def.node if node.name not in left_out]
    del meta.graph_def.node[:]
    meta.graph_def.node.extend(kept)
    meta.ClearField("saver_def")
    for key, collection in list(meta.collection_def.items()):
        if collection.HasField("node_list"):
            names = [name for name in collection.node_list.value if node_of(name) not in left_out]
            collection.node_list.value[:] = names
        elif key in _PROTOS:
            items = [item for item in collection.bytes_list.value if not _names(_PROTOS[key], item) & left_out.keys()]
            collection.bytes_list.value[:] = items
        elif collection.HasField("bytes_list"):  # other collections, such as queues, may contain removed nodes
            del meta.collection_def[key]
    return left_out


def _names(kind: Any, item: bytes) -> set[str]:
    """Return the names of nodes in a VariableDef or a context, including its nested contexts."""
    return set(map(node_of, re.findall(r'"([^"]*)"', str(kind.FromString(item)))))


def _of_graph(graph: Graph) -> ImportedGraph:
    """Import a Graph into a new tf.Graph, with variables for its parameters, so that it can be trained."""
    message = graph.message()
    made = tf.Graph()
    keys = {}
    arguments: dict[str, Any] = {}
    with made.as_default():
        for parameter in message.parameters:
            variable = _variable(parameter.name, tf.as_dtype(parameter.dtype), from_proto(parameter.shape))
            keys[variable.op.name] = parameter.name
            arguments[f"{parameter.node}:0"] = variable.read_value()
        for table in message.tables:
            arguments[f"{table.node}:0"] = _table(Contents(table))
        signatures = sorted(message.signatures.items(), key=lambda item: (item[0] != DEFAULT_SIGNATURE, item[0]))
        wanted = [end for _, signature in signatures for end in (*signature.inputs, *signature.outputs)]
        graph_def = tf.compat.v1.GraphDef.FromString(message.graph_def)
        refuse_gradients(every_node(graph_def))
        tensors = tf.graph_util.import_graph_def(
            graph_def, input_map=arguments, return_elements=[end.tensor for end in wanted], name="graph"
        )
    spelled = dict(zip((end.tensor for end in wanted), (tensor.name for tensor in tensors), strict=True))
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    for _, signature in signatures:
        for end in signature.inputs:
            inputs.setdefault(end.name, spelled[end.tensor])
        for end in signature.outputs:
            outputs.setdefault(end.name, spelled[end.tensor])
    return ImportedGraph(made, inputs, outputs, keys)


def _variable(name: str, dtype: tf.DType, shape: Shape) -> tf.Variable:
    label = re.sub(r"[^A-Za-z0-9_.\-/]", "_", name.removesuffix(_OBJECT_BASED)).lstrip("_-/") or "parameter"
    return tf.compat.v1.Variable(
        tf.zeros(shape, dtype),
        name=label,
        use_resource=True,
        trainable=bool(dtype.is_floating and not _NOT_TRAINED.search(label)),
    )


def _table(contents: Contents) -> tf.Tensor:
    kinds, shape = contents.dtypes, contents.values.shape[1:]
    if shape:
        handle = tf.raw_ops.MutableHashTableOfTensorsV2(**kinds, value_shape=shape, use_node_name_sharing=True)
    else:
        handle = tf.raw_ops.MutableHashTableV2(**kinds, use_node_name_sharing=True)
    filled = tf.raw_ops.LookupTableImportV2(table_handle=handle, **contents.tensors())
    tf.compat.v1.add_to_collection(_KEYS.TABLE_INITIALIZERS, filled)
    return handle
