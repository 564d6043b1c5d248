"""What people give to duplicate(), connect() and synchronise(), checked before anything is added to a graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.host.files import shown


def check_scope(name: Any, what: str = "scope") -> None:
    """Raise GraphError for what TensorFlow does not take for a scope."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9.][\w.\\-]*(/[\w.\\-]+)*", name, re.ASCII):
        raise GraphError(f"{what}: expected letters, digits and _ . - \\ between slashes, found {shown(name)}")


def check_flag(value: Any, what: str) -> None:
    """Raise GraphError for what is neither True nor False."""
    if not isinstance(value, bool):
        raise GraphError(f"{what}: expected True or False, found {shown(value)}")


def check_word(value: Any, what: str, words: tuple[str, ...]) -> None:
    """Raise GraphError for what is none of the words."""
    if not isinstance(value, str) or value not in words:
        reason = ", since graphs share no variables" if words == ("own",) else ""
        raise GraphError(f"{what}: expected {' or '.join(map(repr, words))}{reason}, found {shown(value)}")


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
    """Raise GraphError for what is no graph that nodes can be added to."""
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


def checked_mapping(given: Any, what: str, of: str) -> dict[Any, Any]:
    """The mapping as a dict, empty for None. Raises GraphError for what is none."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise GraphError(f"{what}: expected a dict of {of}, found {shown(given)}")
    return dict(given)


def checked_names(given: Any, what: str) -> list[str]:
    """The names as a list. Raises GraphError for what is no list or tuple of names."""
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise GraphError(f"{what}: expected a list of names, found {shown(given)}")
    return list(given)


def check_session(session: Any, graph: tf.Graph, what: str) -> None:
    """Raise GraphError for what is no session of this graph."""
    if isinstance(session, type):
        raise GraphError(f"{what}: expected a session, found {shown(session)}")
    if not isinstance(getattr(session, "graph", None), tf.Graph) or not callable(getattr(session, "run", None)):
        raise GraphError(f"{what}: expected a session, found {shown(session)}")
    if session.graph is not graph:
        raise GraphError(f"{what}: expected a session of the graph to run in, found one of another graph")
