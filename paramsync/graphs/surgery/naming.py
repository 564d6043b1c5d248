"""What people call the tensors of a live graph: the tensor itself, its name, a variable."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.host.files import shown

PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})  # those without a value of their own


def flat(given: Any, what: str) -> list[Any]:
    """What a structure of tensors holds: one, or several in lists, tuples and dicts; of a sparse one its parts.

    Raises GraphError for None.
    """
    found = [part for one in tf.nest.flatten(given) for part in _parts(one)]
    if any(one is None for one in found):
        raise GraphError(f"{what}: expected tensors, variables or their names, found None")
    return found


def like(given: Any, found: Iterable[Any]) -> Any:
    """These in the structure of what was `given`; a tuple where that was but one."""
    left = iter(found)
    whole = []
    for one in tf.nest.flatten(given):
        parts = [next(left) for _ in _parts(one)]
        whole.append(tf.nest.pack_sequence_as(one, parts, expand_composites=True) if _is_composite(one) else parts[0])
    return tf.nest.pack_sequence_as(given, whole) if tf.nest.is_nested(given) else tuple(whole)


def _parts(one: Any) -> list[Any]:
    return list(tf.nest.flatten(one, expand_composites=True)) if _is_composite(one) else [one]


def _is_composite(one: Any) -> bool:
    return isinstance(one, tf.SparseTensor | tf.RaggedTensor)  # a variable is one too, and is meant as a whole


def graph_of(given: Mapping[str, Iterable[Any]]) -> tf.Graph:
    """The graph that these are of, the default one where all are names. Raises GraphError where they are of several."""
    found: tf.Graph | None = None
    for what, things in given.items():
        for one in map(_plain, things):
            graph = getattr(one, "graph", None) if isinstance(one, (tf.Tensor, tf.Operation, tf.Variable)) else None
            if graph is not None and found is not None and graph is not found:
                raise GraphError(f"{what}: {one.name!r} is of another graph than the rest: expected those of one graph")
            found = graph or found
    return found or tf.compat.v1.get_default_graph()


def element(graph: tf.Graph, one: Any, what: str) -> Any:
    """The tensor, operation or variable that is meant. Raises GraphError, which begins with `what` it is for."""
    one = _plain(one)
    if isinstance(one, str):
        return _named(graph, one, what)
    if not isinstance(one, (tf.Tensor, tf.Operation, tf.Variable)) or getattr(one, "graph", None) is None:
        raise GraphError(f"{what}: expected a tensor or variable of a graph, or the name of one, found {shown(one)}")
    if one.graph is not graph:
        raise GraphError(f"{what}: {one.name!r} is of another graph")
    return one


def placeholders(graph: tf.Graph) -> str:
    """The names of a graph's placeholders, for a message."""
    names = [one.name for one in graph.get_operations() if one.type in PLACEHOLDERS]
    return ", ".join(names[:20]) or "none"


def similar(graph: tf.Graph, name: str) -> str:
    """The names in a graph that come nearest to one that it has not, for the end of a message."""
    names = [one.name for one in graph.get_operations() if one.outputs]
    wanted = name.partition(":")[0]
    last = wanted.rpartition("/")[2].lower()
    ends = [one for one in names if one.rpartition("/")[2].lower() == last]
    found = dict.fromkeys([*ends[:3], *difflib.get_close_matches(wanted, names, 3)])
    return f"; similar: {', '.join(list(found)[:3])}" if found else ""


def operation_of(one: Any) -> tf.Operation | None:
    """The operation behind a tensor, a variable or what else stands for one in a collection; itself if it is one."""
    found = one if isinstance(one, tf.Operation) else getattr(one, "op", None)
    return found if isinstance(found, tf.Operation) else None


def _plain(one: Any) -> Any:
    """What a reference to a tensor or variable, as those that can be keys, is to."""
    return one.deref() if hasattr(one, "deref") else one


def _named(graph: tf.Graph, name: str, what: str) -> Any:
    try:
        return graph.as_graph_element(name if ":" in name else f"{name}:0")
    except (KeyError, ValueError) as error:
        if ":" not in name and name in {one.name for one in graph.get_operations()}:
            return graph.get_operation_by_name(name)  # it has no results
        raise GraphError(
            f"{what}: the graph has no tensor {name!r}; its placeholders: {placeholders(graph)}{similar(graph, name)}"
        ) from error
