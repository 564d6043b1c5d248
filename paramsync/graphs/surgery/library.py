"""The functions of a graph: those that some nodes need, and names for them that nobody else in the process uses."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import tensorflow as tf

from paramsync.graphdef.reading import called, functions_called, functions_of
from paramsync.graphs.lifting.roles import CALLS, definition, functions, set_functions
from paramsync.graphs.surgery.custom_gradients import refuse

_numbers = count()


def library_of(graph: tf.Graph, operations: Iterable[tf.Operation]) -> list[Any]:
    """The functions these operations call, and those they call in turn."""
    nodes = [operation.node_def for operation in operations]
    if not any(
        any(functions_of(node.attr)) or definition(node.op) is None for node in nodes
    ):  # to ask the graph for its functions takes as long as to ask for all it has
        return []
    library = graph.as_graph_def(from_version=graph.version).library  # no nodes are newer than its version
    return functions_called(library.function, nodes)


def set_apart(graph_def: Any, *, device: str | None = None) -> None:
    """Give the functions that calls, loops and branches use names of their own, and leave out those that nothing uses.

    All that is the graph's own then runs on `device`, if that is given.

    TensorFlow keeps the functions of all graphs of a process by name, and changes those it takes gradients of.
    """
    number = next(_numbers)
    found = functions_called(graph_def.library.function, graph_def.node)
    bodies = [graph_def.node, *(one.node_def for one in found)]
    used = {name for nodes in bodies for node in nodes if node.op in CALLS for name in functions(node, CALLS[node.op])}
    others = {name for nodes in bodies for node in nodes for name in called(node) if node.op not in CALLS}
    names = {one.signature.name for one in found}
    renamed = {name: f"{name}__{number}" for name in (used & names) - others}
    for nodes in bodies:
        for node in nodes:
            if node.op in CALLS:
                called_names = functions(node, CALLS[node.op])
                set_functions(node, CALLS[node.op], [renamed.get(name, name) for name in called_names])
    own = [one.node_def for one in found if one.signature.name in renamed]
    for nodes in own:
        refuse(nodes)
    if device is not None:
        for nodes in (graph_def.node, *own):
            for node in nodes:
                node.device = device
    for one in found:
        one.signature.name = renamed.get(one.signature.name, one.signature.name)
    graph_def.library.CopyFrom(type(graph_def.library)(function=found, gradient=graph_def.library.gradient))
