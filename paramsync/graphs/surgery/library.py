"""The functions of a graph: those that some nodes need, and names for them that nobody else in the process uses."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import tensorflow as tf

from paramsync.graphs.lifting.roles import CALLS, called_functions, functions, set_functions

_numbers = count()


def library_of(graph: tf.Graph, operations: Iterable[tf.Operation]) -> list[Any]:
    """The functions these operations call, and those they call in turn."""
    nodes = [operation.node_def for operation in operations]
    called = {name for node in nodes for name in called_functions(node)}
    return _reached(graph.as_graph_def(from_version=graph.version).library.function, called)


def set_apart(graph_def: Any) -> None:
    """Give the functions that calls, loops and branches use names of their own, and leave out those that nothing uses.

    TensorFlow keeps the functions of all graphs of a process by name, and changes those it takes gradients of.
    """
    number = next(_numbers)
    called = {name for node in graph_def.node for name in called_functions(node)}
    found = _reached(graph_def.library.function, called)
    bodies = [graph_def.node, *(one.node_def for one in found)]
    used = {name for nodes in bodies for node in nodes if node.op in CALLS for name in functions(node, CALLS[node.op])}
    others = {name for nodes in bodies for node in nodes for name in called_functions(node) if node.op not in CALLS}
    names = {one.signature.name for one in found}
    renamed = {name: f"{name}__{number}" for name in (used & names) - others}
    for nodes in bodies:
        for node in nodes:
            if node.op in CALLS:
                called_names = functions(node, CALLS[node.op])
                set_functions(node, CALLS[node.op], [renamed.get(name, name) for name in called_names])
    for one in found:
        one.signature.name = renamed.get(one.signature.name, one.signature.name)
    graph_def.library.CopyFrom(type(graph_def.library)(function=found, gradient=graph_def.library.gradient))


def _reached(library: Iterable[Any], names: Iterable[str]) -> list[Any]:
    known = {one.signature.name: one for one in library}
    found: dict[str, Any] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in known and name not in found:
            found[name] = known[name]
            waiting += [inner for node in known[name].node_def for inner in called_functions(node)]
    return list(found.values())
