"""Checks the arguments of duplicate(), connect() and synchronise(), and finds the tensors that they name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import node_of
from paramsync.graphs.nodes import PLACEHOLDERS
from paramsync.host.files import shown


def check_scope(name: Any, what: str = "scope") -> None:
    """Raise GraphError unless TensorFlow takes the name for a scope."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9.][\w.\\-]*(/[\w.\\-]+)*", name, re.ASCII):
        raise GraphError(f"{what}: expected letters, digits and _ . - \\ between slashes, found {shown(name)}")


def check_choice(value: Any, what: str, choices: tuple[str | bool, ...]) -> None:
    """Raise GraphError unless the value is one of these words, or of these: True, False."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        reason = ", since graphs share no variables" if choices == ("own",) else ""
        raise GraphError(f"{what}: expected {' or '.join(map(repr, choices))}{reason}, found {shown(value)}")


def checked_device(device: Any) -> str | None:
    """The device as TensorFlow spells it, "" for none. Raises GraphError for what is no name of one and not None."""
    try:
        if device is None:
            return None
        if isinstance(device, str):
            return str(tf.DeviceSpec.from_string(device).to_string())
    except ValueError:  # said below
        pass
    raise GraphError(
        f"device: expected a name such as '/CPU:0', '' for none or None for those of the source, found {shown(device)}"
    )


def check_graph(graph: Any, what: str = "graph") -> None:
    """Raise GraphError unless nodes can be added to the graph."""
    if not isinstance(graph, tf.Graph):
        raise GraphError(f"{what}: expected a tf.Graph, found {shown(graph)}")
    if graph.building_function:
        raise GraphError(
            f"{what}: expected a tf.Graph, found that of the tf.function {getattr(graph, 'name', '')!r}, whose calls"
            " would not see what is added: do this outside of tf.function, within a tf.Graph().as_default()"
        )
    if graph.finalized:
        raise GraphError(
            f"{what}: nothing can be added to a finalised graph: do this before finalize(), or before a"
            " MonitoredSession is made, or copy to another graph (graph=tf.Graph())"
        )


def checked_mapping(mapping: Any, what: str, of: str) -> dict[Any, Any]:
    """The mapping as a dict, empty for None. Raises GraphError for anything else."""
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        raise GraphError(f"{what}: expected a dict of {of}, found {shown(mapping)}")
    return dict(mapping)


def checked_names(names: Any, what: str) -> list[str]:
    """The names as a list. Raises GraphError for what is no list or tuple of names."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise GraphError(f"{what}: expected a list of names, found {shown(names)}")
    return list(names)


def check_session(session: Any, graph: tf.Graph, what: str) -> None:
    """Raise GraphError unless it is a session of this graph."""
    if isinstance(session, type):
        raise GraphError(f"{what}: expected a session, found {shown(session)}")
    if not isinstance(getattr(session, "graph", None), tf.Graph) or not callable(getattr(session, "run", None)):
        raise GraphError(f"{what}: expected a session, found {shown(session)}")
    if session.graph is not graph:
        raise GraphError(f"{what}: expected a session of the graph to run in, found one of another graph")


def flat(structure: Any, what: str) -> list[Any]:
    """Flatten a tensor, or lists, tuples and dicts of tensors; a sparse or ragged one is its parts.

    Raises GraphError for None.
    """
    parts = [part for value in tf.nest.flatten(structure) for part in _parts(value)]
    if any(value is None for value in parts):
        raise GraphError(f"{what}: expected tensors, variables or their names, found None")
    return parts


def like(structure: Any, values: Iterable[Any]) -> Any:
    """Pack these values into `structure`; into a tuple where that is a single tensor."""
    left = iter(values)
    whole = []
    for value in tf.nest.flatten(structure):
        parts = [next(left) for _ in _parts(value)]
        whole.append(
            tf.nest.pack_sequence_as(value, parts, expand_composites=True) if _is_composite(value) else parts[0]
        )
    return tf.nest.pack_sequence_as(structure, whole) if tf.nest.is_nested(structure) else tuple(whole)


def _parts(value: Any) -> list[Any]:
    return list(tf.nest.flatten(value, expand_composites=True)) if _is_composite(value) else [value]


def _is_composite(value: Any) -> bool:
    return isinstance(value, tf.SparseTensor | tf.RaggedTensor)  # a variable is one too, and is meant as a whole


def graph_of(roles: Mapping[str, Iterable[Any]]) -> tf.Graph:
    """The graph that these are of, the default one where all are names. Raises GraphError where they are of several."""
    common: tf.Graph | None = None
    for what, values in roles.items():
        for value in map(plain, values):
            graph = getattr(value, "graph", None) if isinstance(value, (tf.Tensor, tf.Operation, tf.Variable)) else None
            if graph is not None and common is not None and graph is not common:
                raise GraphError(
                    f"{what}: {value.name!r} is of another graph than the rest: expected those of one graph"
                )
            common = graph or common
    return common or tf.compat.v1.get_default_graph()


def element(graph: tf.Graph, value: Any, what: str) -> Any:
    """The tensor, operation or variable that is meant. Raises GraphError, which begins with `what` it is for."""
    value = plain(value)
    if isinstance(value, str):
        return _named(graph, value, what)
    if not isinstance(value, (tf.Tensor, tf.Operation, tf.Variable)) or getattr(value, "graph", None) is None:
        raise GraphError(f"{what}: expected a tensor or variable of a graph, or the name of one, found {shown(value)}")
    if value.graph is not graph:
        raise GraphError(f"{what}: {value.name!r} is of another graph")
    return value


def placeholders(graph: tf.Graph) -> str:
    """The names of a graph's placeholders, for a message."""
    names = [operation.name for operation in graph.get_operations() if operation.type in PLACEHOLDERS]
    return ", ".join(names[:20]) or "none"


def similar(graph: tf.Graph, name: str) -> str:
    """The end of a message: names in the graph that are close to one that it lacks."""
    names = [operation.name for operation in graph.get_operations() if operation.outputs]
    wanted = node_of(name)
    last = wanted.rpartition("/")[2].lower()
    ends = [name for name in names if name.rpartition("/")[2].lower() == last]
    nearest = dict.fromkeys([*ends[:3], *difflib.get_close_matches(wanted, names, 3)])
    return f"; similar: {', '.join(list(nearest)[:3])}" if nearest else ""


def operation_of(item: Any) -> tf.Operation | None:
    """The operation behind a tensor, a variable or what else stands for one in a collection; itself if it is one."""
    operation = item if isinstance(item, tf.Operation) else getattr(item, "op", None)
    return operation if isinstance(operation, tf.Operation) else None


def plain(value: Any) -> Any:
    """What a `tensor.ref()`, which people use as a key, refers to; TensorFlow's variable of a Keras variable."""
    value = value.deref() if hasattr(value, "deref") else value
    return value.value if isinstance(value, keras.Variable) else value


def _named(graph: tf.Graph, name: str, what: str) -> Any:
    try:
        return graph.as_graph_element(name if ":" in name else f"{name}:0")
    except (KeyError, ValueError) as error:
        if ":" not in name and name in {operation.name for operation in graph.get_operations()}:
            return graph.get_operation_by_name(name)  # it has no results
        raise GraphError(
            f"{what}: the graph has no tensor {name!r}; its placeholders: {placeholders(graph)}{similar(graph, name)}"
        ) from error
