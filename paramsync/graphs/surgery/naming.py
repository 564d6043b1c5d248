"""What people call the tensors of a live graph: the tensor itself, its name, a variable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError

PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})  # those without a value of their own


def listed(given: Any) -> list[Any]:
    """One thing or several, as several."""
    return list(given) if isinstance(given, (list, tuple)) else [given]


def check_scope(name: str) -> None:
    """Raise GraphError for what TensorFlow does not take for a scope."""
    if not re.fullmatch(r"[A-Za-z0-9.][\w.\\-]*(/[\w.\\-]+)*", name, re.ASCII):
        raise GraphError(f"scope: expected letters, digits and _ . - \\ between slashes, found {name!r}")


def graph_of(things: Iterable[Any]) -> tf.Graph:
    """The graph that these are of, the default one where all are names. Raises GraphError where they are of several."""
    found: tf.Graph | None = None
    for thing in things:
        one = thing.deref() if hasattr(thing, "deref") else thing
        graph = getattr(one, "graph", None)
        if graph is not None and found is not None and graph is not found:
            raise GraphError(f"{one.name!r} is of another graph than the rest: everything must be of one graph")
        found = graph or found
    return found or tf.compat.v1.get_default_graph()


def element(graph: tf.Graph, one: Any) -> Any:
    """The tensor, operation or variable that is meant. Raises GraphError, which lists the graph's placeholders."""
    if hasattr(one, "deref"):
        one = one.deref()
    if isinstance(one, str):
        try:
            return graph.as_graph_element(one if ":" in one else f"{one}:0")
        except (KeyError, ValueError) as error:
            raise GraphError(f"the graph has no tensor {one!r}; its placeholders: {placeholders(graph)}") from error
    if not isinstance(one, (tf.Tensor, tf.Operation, tf.Variable)) or getattr(one, "graph", None) is None:
        raise GraphError(f"expected a tensor or variable of a graph, or the name of one, found {one!r}")
    return one


def placeholders(graph: tf.Graph) -> str:
    """The names of a graph's placeholders, for a message."""
    names = [one.name for one in graph.get_operations() if one.type in PLACEHOLDERS]
    return ", ".join(names[:20]) or "none"


def operation_of(one: Any) -> tf.Operation | None:
    """The operation behind a tensor, a variable or what else stands for one in a collection; itself if it is one."""
    found = one if isinstance(one, tf.Operation) else getattr(one, "op", None)
    return found if isinstance(found, tf.Operation) else None
