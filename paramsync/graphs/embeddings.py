"""Embeddings: the parameters of which a graph only looks up rows, so that a call reads a few of their bytes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tensorflow as tf

from paramsync.graph_defs import node_of
from paramsync.v1 import graph_pb2

_PASSED_ON = frozenset(("Identity", "PreventGradient", "Snapshot", "StopGradient"))
_UNREAD = frozenset(("Rank", "Shape", "ShapeN", "Size"))  # what these say is known without the values
_LOOKED_UP = frozenset(
    ("Gather", "GatherNd", "GatherV2", "SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum")
)


def embeddings(graph_def: Any, message: graph_pb2.Graph) -> frozenset[str]:
    """The names of such parameters. What is given to a function counts as read."""
    nodes = {node.name: node for node in graph_def.node}
    readers: defaultdict[str, list[tuple[Any, int]]] = defaultdict(list)
    for node in graph_def.node:
        for at, tensor in enumerate(node.input):
            if not tensor.startswith("^"):
                readers[node_of(tensor)].append((node, at))
    returned = {node_of(one.tensor) for signature in message.signatures.values() for one in signature.outputs}

    def is_embedding(name: str) -> bool:
        waiting, seen = [name], set[str]()
        while waiting:
            name = waiting.pop()
            if name in returned:
                return False
            if name in seen:
                continue
            seen.add(name)
            for node, at in readers[name]:
                if node.op in _PASSED_ON:
                    waiting.append(node.name)
                elif node.op not in _UNREAD and not (at == 0 and _looks_up_rows(node, nodes)):
                    return False
        return True

    return frozenset(one.name for one in message.parameters if is_embedding(one.node))


def _looks_up_rows(node: Any, nodes: dict[str, Any]) -> bool:
    """Whether it takes whole rows of its first argument: along another dimension it would touch all of them."""
    if node.op != "GatherV2":
        return node.op in _LOOKED_UP
    axis = nodes.get(node_of(node.input[2]))
    return (
        axis is not None
        and axis.op == "Const"
        and not node.attr["batch_dims"].i
        and int(tf.make_ndarray(axis.attr["value"].tensor)) == 0
    )
