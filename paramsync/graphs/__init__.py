"""Captures, calls, copies, joins and connects graphs. The first use of a name imports TensorFlow."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramsync.graphs.capturing import Capture, capture
    from paramsync.graphs.graph import Graph
    from paramsync.graphs.joining import join
    from paramsync.graphs.surgery.connect import Connected, connect
    from paramsync.graphs.surgery.duplicate import Copy, Synchronisation, duplicate, synchronise

_MODULES = {
    "Capture": "capturing",
    "Connected": "surgery.connect",
    "Copy": "surgery.duplicate",
    "Graph": "graph",
    "Synchronisation": "surgery.duplicate",
    "capture": "capturing",
    "connect": "surgery.connect",
    "duplicate": "surgery.duplicate",
    "join": "joining",
    "synchronise": "surgery.duplicate",
}
__all__ = ["Capture", "Connected", "Copy", "Graph", "Synchronisation"]
__all__ += ["capture", "connect", "duplicate", "join", "synchronise"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from paramsync.program.packages import with_tensorflow

    with with_tensorflow(f"paramsync.graphs.{name}"):
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
