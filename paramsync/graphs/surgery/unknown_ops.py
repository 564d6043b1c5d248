"""Leaves out of a meta graph what needs ops that this TensorFlow does not know, and so cannot import."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import control_flow_pb2

from paramsync.graphdef.reading import node_of, reach
from paramsync.graphs.nodes import definition

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


def leave_out(meta: Any) -> dict[str, str]:
    """Take the nodes of unknown ops out of a MetaGraphDef, and all that reads them, and whatever speaks of these.

    Returns the names of these nodes, each with the unknown op that it needs.
    """
    functions = {function.signature.name for function in meta.graph_def.library.function}
    unknown = [node for node in meta.graph_def.node if node.op not in functions and definition(node.op) is None]
    if not unknown:
        return {}
    readers: dict[str, list[str]] = defaultdict(list)
    for node in meta.graph_def.node:
        for tensor in node.input:
            readers[node_of(tensor)].append(node.name)
    left_out: dict[str, str] = {}
    for node in unknown:
        for name in reach([node.name], lambda name: [reader for reader in readers[name] if reader not in left_out]):
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
        elif collection.HasField("bytes_list"):  # as of queues that feed a training
            del meta.collection_def[key]
    return left_out


def _names(kind: Any, item: bytes) -> set[str]:
    """The nodes that a variable or a context names; of a context, those of the contexts in it too."""
    return set(map(node_of, re.findall(r'"([^"]*)"', str(kind.FromString(item)))))
