"""Drafts of meta graphs: the graph, Saver and collections that v1 programs write beside a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from paramsync.errors import CorruptCheckpointError, GraphError, UnfinishedMetaError
from paramsync.graphdef.reading import full, node_of
from paramsync.graphs.draft import Draft, finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.nodes import argument_at
from paramsync.graphs.safety import META_GRAPH, check_weight
from paramsync.graphs.sources.structures import endpoint
from paramsync.graphs.sources.table_contents import Foreign
from paramsync.graphs.sources.v1_graphs import V1Graph, variable_defs
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.host import files
from paramsync.v1 import graph_pb2

Ends = Sequence[str] | Mapping[str, str]
"""Names of tensors ("x" or "x:0") in a sequence, or by the names that callers use."""


def capture_meta(content: bytes, *, path: Path, inputs: Ends, outputs: Ends, allowed: Collection[str] = ()) -> Graph:
    """Capture the graph between these tensors of a `.meta` file. Its parameters have the names in the file's Saver.

    `content` was read from `path`. `allowed` are ops to accept although they are not on the list of safe ops. Raises
    UnfinishedMetaError for an unreadable file, and GraphError, which lists the known names, for an unknown name or a
    missing input.
    """
    return finish(draft_of_meta(_parsed(content, path), inputs, outputs, where=str(path), allowed=allowed))


def read_meta(path: Path) -> Any:
    """Read the message in a `.meta` file.

    Raises UnfinishedMetaError, UnsafeGraphError if the message would take too much memory, and GraphError if the file
    is not regular or too large.
    """
    try:
        content = files.content(path, limit=files.MAX_MESSAGE)
    except OSError as error:
        raise UnfinishedMetaError(f"{path} cannot be read: {error.strerror}") from error
    except CorruptCheckpointError as error:
        raise GraphError(str(error)) from error
    return _parsed(content, path)


def _parsed(content: bytes, path: Path) -> Any:
    if not content:
        raise UnfinishedMetaError(f"{path} is not a readable meta graph: it is empty")
    check_weight(content, META_GRAPH)
    try:
        return meta_graph_pb2.MetaGraphDef.FromString(content)
    except DecodeError as error:
        raise UnfinishedMetaError(f"{path} is not a readable meta graph: {error}") from error


def draft_of_meta(
    meta: Any, inputs: Ends, outputs: Ends, *, where: str = "the meta graph", allowed: Collection[str] = ()
) -> Draft:
    """Draft the graph between these tensors of a MetaGraphDef. Raises GraphError; see `capture_meta`."""
    graph = v1_graph(meta, where, Foreign({}, allowed))
    starts, ends = _named(inputs, "inputs"), _named(outputs, "outputs")
    signature = graph_pb2.Signature(
        inputs=[_input(graph, meta, name, tensor) for name, tensor in starts.items()],
        outputs=[graph_pb2.Endpoint(name=name, tensor=full(tensor)) for name, tensor in ends.items()],
    )
    return graph.draft({DEFAULT_SIGNATURE: signature}, unused_inputs=False)


def v1_graph(meta: Any, where: str, foreign: Foreign) -> V1Graph:
    """Return the graph of a MetaGraphDef, with its variables and the nodes that fill its tables."""
    collections, keys = meta.collection_def, tf.compat.v1.GraphKeys
    variables = collections[keys.GLOBAL_VARIABLES].bytes_list.value if keys.GLOBAL_VARIABLES in collections else ()
    # `main` names an operation that runs before a SavedModel's first prediction
    main = meta.signature_def.get("__saved_model_init_op")
    fillers = [] if main is None else [end.name for end in main.outputs.values()]
    for key in (keys.TABLE_INITIALIZERS, "saved_model_main_op", "legacy_init_op"):
        if key in collections:
            fillers += collections[key].node_list.value
    return V1Graph(
        where,
        meta.graph_def,
        saver=meta.saver_def.save_tensor_name,
        variables=variable_defs(variables, where),
        fillers=list(map(node_of, fillers)),
        foreign=foreign,
    )


def _named(tensors: Ends, what: str) -> dict[str, str]:
    """Return the tensors by the names that callers use. In a sequence, tensors have their own names."""
    if isinstance(tensors, Mapping):
        return dict(tensors)
    named = {tensor.removesuffix(":0"): tensor for tensor in tensors}
    if len(named) != len(tensors):
        raise GraphError(f"{what}: expected each tensor once, found {', '.join(tensors)}")
    return named


def _input(graph: V1Graph, meta: Any, name: str, tensor: str) -> graph_pb2.Endpoint:
    """Describe any tensor as an input. Its dtype comes from the meta graph, because TensorFlow may not know its op."""
    node = graph.node(tensor)
    port = full(tensor).partition(":")[2]
    dtype = _dtype(meta, node, int(port)) if port.isdecimal() else None
    if dtype is None:
        raise graph.unknown(tensor)
    return endpoint(name, full(tensor), dtype, _shape(meta, node, int(port)))


def _shape(meta: Any, node: Any, port: int) -> Any:
    if node.op.startswith("Placeholder") and "shape" in node.attr:
        return node.attr["shape"].shape
    if "_output_shapes" in node.attr and port < len(node.attr["_output_shapes"].list.shape):
        return node.attr["_output_shapes"].list.shape[port]
    return tf.TensorShape(None).as_proto()


def _dtype(meta: Any, node: Any, port: int) -> int | None:
    """Return the dtype of an output, from the op definitions in the meta graph; None for an unknown output number."""
    if node.op.startswith("Placeholder"):
        return int(node.attr["dtype"].type) if port == 0 else None
    functions = (function.signature for function in meta.graph_def.library.function)
    definitions = (*meta.meta_info_def.stripped_op_list.op, *functions)
    definition = next((op for op in definitions if op.name == node.op), None)
    if definition is None:
        raise GraphError(
            f"the meta graph does not define the op {node.op} of {node.name!r}, so that it is not known what it gives:"
            " expected one from a Saver or export_meta_graph, or an input that is a placeholder"
        )
    whole = node_def_pb2.NodeDef(attr={attribute.name: attribute.default_value for attribute in definition.attr})
    whole.MergeFrom(node)
    found = argument_at(whole, definition.output_arg, port)
    if found is None:
        return None
    result, position = found
    if result.type_list_attr:
        return int(whole.attr[result.type_list_attr].list.type[position])
    return int(result.type or whole.attr[result.type_attr].type)
