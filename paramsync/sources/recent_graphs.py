"""Graphs that were built in this process lately, so that a model that comes again takes the one it had."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from paramsync.graphs.graph import Graph

_KEPT = 16  # as long as nobody else has them
_LARGEST = 4 << 20  # bytes; what a larger one holds is worth more than what TensorFlow prepared for it


class Recent:
    """By all that they were built from. Any thread.

    TensorFlow keeps what it prepared for a graph that was called until the process ends: a third of a megabyte for a
    small one. Models that come and go, again and again, would fill the memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._graphs: dict[Hashable, Graph] = {}

    def built(self, key: Hashable, build: Callable[[], Graph]) -> Graph:
        """The one that was built from the same, or what `build` returns. It is not called under the lock."""
        found = self.find(key)
        return self.keep(key, build()) if found is None else found

    def find(self, key: Hashable) -> Graph | None:
        with self._lock:
            found = self._graphs.pop(key, None)
            if found is not None:
                self._graphs[key] = found  # last in the order of use
            return found

    def keep(self, key: Hashable, graph: Graph) -> Graph:
        """The graph."""
        if graph.message().ByteSize() <= _LARGEST:
            with self._lock:
                self._graphs[key] = graph
                while len(self._graphs) > _KEPT:
                    del self._graphs[next(iter(self._graphs))]
        return graph


RECENT = Recent()
