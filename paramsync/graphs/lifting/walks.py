"""Walking a GraphDef back from tensors: the nodes that lead to them and the functions these call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import full, functions_called, node_of


def leading_to(nodes: Mapping[str, Any], tensors: Iterable[str], *, fed: Collection[str] = ()) -> list[Any]:
    """The nodes that these tensors ("x", "x:0", "^x") need, in the order of `nodes`; not past those in `fed` ("x:0").

    Raises GraphError where a node is not there.
    """
    reached: set[str] = set()
    waiting = list(tensors)
    while waiting:
        tensor = waiting.pop()
        name = node_of(tensor)
        if name in reached or full(tensor) in fed:
            continue
        if name not in nodes:
            raise GraphError(f"the graph has no node {name!r}, which the node of {tensor!r} should be")
        reached.add(name)
        waiting += nodes[name].input
    return [node for name, node in nodes.items() if name in reached]


def with_functions(graph_def: Any, nodes: Iterable[Any]) -> Any:
    """A new GraphDef of these nodes of it and of the functions that they call."""
    result = tf.compat.v1.GraphDef(versions=graph_def.versions)
    result.node.extend(nodes)
    result.library.function.extend(functions_called(graph_def.library.function, result.node))
    return result
