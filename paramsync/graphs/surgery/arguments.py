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


def check_scope(name: str, what: str = "scope") -> None:
    """Raise GraphError unless TensorFlow accepts the name for a scope."""
    if not re.fullmatch(r"[A-Za-z0-9.][\w.\\-]*(/[\w.\\-]+)*", name, re.ASCII):
        raise GraphError(f"{what}: expected letters, digits and _ . - \\ between slashes, found {shown(name)}")


def normalise_device(device: str | None) -> str | None:
    """Return the device in TensorFlow's spelling. Raises GraphError.

    "" stands for no device, and None for the devices of the source.
    """
    try:
        return None if device is None else str(tf.DeviceSpec.from_string(device).to_string())
    except ValueError as error:
        raise GraphError(
            "device: expected a name such as '/CPU:0', '' for none or None for those of the source,"
            f" found {shown(device)}"
        ) from error


def check_graph(graph: tf.Graph, what: str = "graph") -> None:
    """Raise GraphError unless nodes can be added to the graph."""
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


def check_session(session: tf.compat.v1.Session, graph: tf.Graph, what: str) -> None:
    """Raise GraphError unless the session belongs to this graph."""
    if session.graph is not graph:
        raise GraphError(f"{what}: expected a session of the graph to run in, found one of another graph")


def flatten(structure: Any) -> list[Any]:
    """List the tensors of a structure of lists, tuples and dicts. A sparse or ragged tensor becomes its parts."""
    return [part for value in tf.nest.flatten(structure) for part in _parts(value)]


def pack_like(structure: Any, values: Iterable[Any]) -> Any:
    """Pack the values like `structure`, the inverse of `flatten`. A single tensor becomes a tuple."""
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
    return isinstance(value, tf.SparseTensor | tf.RaggedTensor)  # for TensorFlow, variables are composite too


def graph_of(roles: Mapping[str, Iterable[Any]]) -> tf.Graph:
    """Return the graph of all these tensors; the default graph if all are names. Raises GraphError if graphs differ."""
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
    """Return the tensor, operation or variable that `value` is or names. Raises GraphError with a text about `what`."""
    value = plain(value)
    if isinstance(value, str):
        return _named(graph, value, what)
    if not isinstance(value, (tf.Tensor, tf.Operation, tf.Variable)) or getattr(value, "graph", None) is None:
        raise GraphError(f"{what}: expected a tensor or variable of a graph, or the name of one, found {shown(value)}")
    if value.graph is not graph:
        raise GraphError(f"{what}: {value.name!r} is of another graph")
    return value


def _named(graph: tf.Graph, name: str, what: str) -> Any:
    try:
        return graph.as_graph_element(name if ":" in name else f"{name}:0")
    except (KeyError, ValueError) as error:
        if ":" not in name and name in {operation.name for operation in graph.get_operations()}:
            return graph.get_operation_by_name(name)  # an operation without results
        raise GraphError(f"{what}: the graph has no tensor {name!r}; its placeholders: {hint(graph, name)}") from error


def hint(graph: tf.Graph, name: str) -> str:
    """Return the end of a message about an unknown name: the graph's placeholders, and similar names."""
    operations = graph.get_operations()
    placeholders = [operation.name for operation in operations if operation.type in PLACEHOLDERS]
    names = [operation.name for operation in operations if operation.outputs]
    similar = ", ".join(difflib.get_close_matches(node_of(name), names, 3))
    return (", ".join(placeholders[:20]) or "none") + (f"; similar: {similar}" if similar else "")


def operation_of(item: Any) -> tf.Operation | None:
    """Return the operation of a member of a collection, such as a tensor or variable; None if it has none."""
    operation = item if isinstance(item, tf.Operation) else getattr(item, "op", None)
    return operation if isinstance(operation, tf.Operation) else None


def plain(value: Any) -> Any:
    """Unwrap a `tensor.ref()`, which callers use as a key, or a Keras variable. Returns other values unchanged."""
    value = value.deref() if hasattr(value, "deref") else value
    return value.value if isinstance(value, keras.Variable) else value
