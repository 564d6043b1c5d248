"""Sources of connect(): a .meta file, a MetaGraphDef, a live graph or a Graph, each in a tf.Graph of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import every_node, node_of, reach
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.meta_graphs import read_meta
from paramsync.graphs.sources.saver_names import VARIABLES, parameters
from paramsync.graphs.specs import DEFAULT_SIGNATURE, Shape, from_proto
from paramsync.graphs.surgery.custom_gradients import refuse
from paramsync.graphs.surgery.unknown_ops import leave_out
from paramsync.graphs.surgery.variables import saved_as
from paramsync.graphs.tables import Contents
from paramsync.host.files import shown

_GRADIENTS = re.compile(r"(^|/)gradients(_\d+)?/")  # TensorFlow's name for them
_OF_TRAINING = re.compile("Assign|Apply|Scatter|Save|Restore|Summary|Assert|Print")
_OBJECT_BASED = "/.ATTRIBUTES/VARIABLE_VALUE"
_NOT_TRAINED = re.compile(r"(^|/)moving_")  # what layers call the statistics they keep


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """A graph to import: what its inputs and outputs are called, and its variables, by operation, in its checkpoint."""

    graph: tf.Graph
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Nodes that could not be imported, each with the unknown op that it needs."""

    def tensor(self, name: str) -> tf.Tensor | None:
        """The tensor of this name, whether a signature's or the graph's; None where there is none.

        Raises GraphError for one that was left out.
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
        """What a tensor is called."""
        named = {spelled: name for name, spelled in [*self.inputs.items(), *self.outputs.items()]}
        return str(named.get(tensor.name, tensor.name.removesuffix(":0")))

    def saved_as(self, name: str, variable: tf.Variable) -> tuple[str, tf.TensorShape]:
        """The key of a variable in the checkpoint, and its shape there."""
        key, shape = saved_as(name, variable)
        return self.keys.get(name, key), shape

    def ends(self) -> list[tf.Tensor]:
        """Its outputs. Where it names none: what depends on a placeholder, is read by nothing and is no gradient."""
        if self.outputs:
            return [tensor for name in self.outputs if (tensor := self.tensor(name)) is not None]
        if self.left_out:
            ops = ", ".join(sorted(set(self.left_out.values())))
            raise GraphError(f"outputs: expected names, since what needs {ops}, unknown here, is left out; found none")

        def readers(operation: tf.Operation) -> list[tf.Operation]:
            consumers = [reader for tensor in operation.outputs for reader in tensor.consumers()]
            return [reader for reader in consumers if not _OF_TRAINING.search(reader.type)]

        placeholders = [operation for operation in self.graph.get_operations() if operation.type == "Placeholder"]
        return [
            operation.outputs[0]
            for operation in reach(placeholders, readers)
            if operation.inputs
            and operation.outputs
            and not _GRADIENTS.search(operation.name)
            and not any(tensor.consumers() for tensor in operation.outputs)
        ]


def source_of(source: Any) -> ImportedGraph:
    """Import a source. Raises GraphError where it cannot be connected, UnfinishedMetaError for half a file."""
    if isinstance(source, ImportedGraph):
        return source
    if isinstance(source, Graph):
        return _of_graph(source)
    if isinstance(source, tf.Graph):
        return ImportedGraph(source)
    if isinstance(source, tf.compat.v1.MetaGraphDef):
        return _of_meta(source, "the meta graph")
    if isinstance(source, (str, Path)) and source:
        return _of_meta(read_meta(Path(source)), str(source))
    raise GraphError(
        f"sources: expected a .meta file, a MetaGraphDef, a tf.Graph or a Graph to connect, found {shown(source)}"
    )


def _of_meta(meta: Any, where: str) -> ImportedGraph:
    graph = tf.Graph()
    own = tf.compat.v1.MetaGraphDef.FromString(meta.SerializeToString())
    left_out = leave_out(own)
    _own(own.graph_def)
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


def _own(graph_def: Any) -> Any:
    """The nodes without the names of gradients that somebody wrote, which mean others in another process."""
    refuse(every_node(graph_def))
    return graph_def


def _of_graph(graph: Graph) -> ImportedGraph:
    """A Graph with variables for its parameters, so that it can be trained."""
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
        graph_def = _own(tf.compat.v1.GraphDef.FromString(message.graph_def))
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
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, filled)
    return handle
