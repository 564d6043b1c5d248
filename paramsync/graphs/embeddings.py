"""Embeddings: the parameters of which a graph only looks up rows, so that a call reads a few of their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from paramsync.graphdef.reading import node_of
from paramsync.graphs.lifting.walks import leading_to
from paramsync.v1 import graph_pb2

_PASSED_ON = frozenset(("Identity", "PreventGradient", "Snapshot", "StopGradient"))
_UNREAD = frozenset(("Rank", "Shape", "ShapeN", "Size"))  # what these say is known without the values
_LOOKED_UP = frozenset(("Gather", "GatherNd", "SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum"))


def embeddings(graph_def: Any, message: graph_pb2.Graph) -> frozenset[str]:
    """The names of such parameters. What is given to a function counts as read; so does what nobody can be sure of.

    Takes as long as it takes to look at each node that leads to an output once.
    """
    nodes = {node.name: node for node in graph_def.node}
    returned = [one.tensor for signature in message.signatures.values() for one in signature.outputs]
    read = {node_of(one) for one in returned}  # nodes of which all bytes are
    for node in leading_to(nodes, returned):
        given = [node_of(one) for one in node.input if not one.startswith("^")]
        if node.op in _PASSED_ON:
            read.update(given[1:])
        elif node.op not in _UNREAD:
            read.update(given[1:] if _looks_up_rows(node, given, nodes) else given)
    waiting = [*read]
    while waiting:
        node = nodes.get(waiting.pop())
        if node is not None and node.op in _PASSED_ON:
            new = {node_of(one) for one in node.input} - read
            read |= new
            waiting += new
    return frozenset(one.name for one in message.parameters if one.node not in read)


def _looks_up_rows(node: Any, given: Sequence[str], nodes: Mapping[str, Any]) -> bool:
    """Whether it takes whole rows of its first argument: along another dimension it would touch all of them."""
    if node.op != "GatherV2":
        return node.op in _LOOKED_UP
    axis = nodes.get(given[2]) if len(given) == 3 else None
    if axis is None or axis.op != "Const" or node.attr["batch_dims"].i:
        return False
    value = axis.attr["value"].tensor
    scalar = not value.tensor_shape.dim and not value.tensor_shape.unknown_rank
    whole = value.dtype in (tf.int32.as_datatype_enum, tf.int64.as_datatype_enum)
    return scalar and whole and int(tf.make_ndarray(value)) == 0
