"""The graphs of the versions of one store: where each comes from, and caches of those that were built."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path

from paramsync.errors import GraphError, UnfinishedMetaError
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.meta_graphs import capture_meta
from paramsync.host import files
from paramsync.host.terminal import line
from paramsync.sources import identity
from paramsync.store.store import Store
from paramsync.version import Version

_log = logging.getLogger("paramsync.sources")


class GraphCache:
    """An LRU cache of graphs, by all that they were built from. Any thread."""

    def __init__(self, capacity: int, *, largest: int | None = None) -> None:
        """Graphs of more than `largest` bytes are not kept."""
        self._capacity = capacity
        self._largest = largest
        self._lock = threading.Lock()
        self._graphs: dict[Hashable, Graph] = {}  # the least recently used first

    def find(self, key: Hashable) -> Graph | None:
        with self._lock:
            found = self._graphs.pop(key, None)
            if found is not None:
                self._graphs[key] = found
            return found

    def keep(self, key: Hashable, graph: Graph) -> Graph:
        """Returns the graph."""
        if self._largest is None or graph.message().ByteSize() <= self._largest:
            with self._lock:
                self._graphs.pop(key, None)
                self._graphs[key] = graph
                while len(self._graphs) > self._capacity:
                    del self._graphs[next(iter(self._graphs))]
        return graph

    def built(self, key: Hashable, build: Callable[[], Graph]) -> Graph:
        """The cached graph, or what `build` returns, which is called without the lock."""
        found = self.find(key)
        return self.keep(key, build()) if found is None else found

    def same_as(self, graph: Graph) -> Graph:
        """A cached graph with the same digest, for which everything is prepared already; else the graph itself."""
        with self._lock:
            known = list(self._graphs.values())
        return next((one for one in known if (one.digest, one.refused) == (graph.digest, graph.refused)), graph)


RECENT = GraphCache(16, largest=4 << 20)
"""Graphs that this process built lately, so that a model that comes again takes the graph it had.

TensorFlow keeps what it prepared for a graph that was called until the process ends: a third of a megabyte for a small
one. Models that come and go, again and again, would fill the memory. What a larger graph holds itself is worth more
than what TensorFlow prepared for it.
"""

OF_A_SOURCE = 4  # graphs: those of a version and its predecessor, and of some that were there before


class CheckpointGraphs:
    """Gives each checkpoint its graph: the recorded one, the given one, or the one that a Saver wrote beside it."""

    def __init__(
        self,
        store: Store,
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        graph: Path | None = None,
        allowed: Collection[str] = (),
    ) -> None:
        """`graph` is a graph file or the directory of a SavedModel, for versions that name no graph themselves."""
        self._store = store
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._given = graph
        self._allowed = frozenset(allowed)
        self._graphs = GraphCache(OF_A_SOURCE)

    def of(self, version: Version) -> Graph:
        """Raises GraphError, UnfinishedMetaError, UnsafeGraphError, CorruptCheckpointError, OSError."""
        if version.graph:
            return self._graphs.built(version.graph, lambda: self._published(version))
        if self._given is not None:
            return self._of_given(self._given, version)
        meta = Path(f"{self._store.prefix(version)}.meta")
        if not (self._inputs and self._outputs):
            raise GraphError(
                f"version {version.number} names no graph: give --inputs and --outputs to take it from {meta},"
                " or a graph: the directory of a SavedModel, or a graph file"
            )
        try:
            content = files.content(meta, limit=files.MAX_MESSAGE)
        except FileNotFoundError as error:
            raise UnfinishedMetaError(_needs(version, meta)) from error
        key = (hashlib.sha256(content).digest(), self._inputs, self._outputs, self._allowed)
        return self._graphs.built(
            key,
            lambda: RECENT.built(
                key,
                lambda: capture_meta(
                    content, path=meta, inputs=self._inputs, outputs=self._outputs, allowed=self._allowed
                ),
            ),
        )

    def _published(self, version: Version) -> Graph:
        path = self._store.graph_file(version.graph)
        try:
            graph = _of_file(path, self._allowed)
        except FileNotFoundError as error:
            raise GraphError(_needs(version, path)) from error
        if graph.digest != version.graph:
            raise GraphError(f"{path}: expected the graph {version.graph}, found {graph.digest}")
        return graph

    def _of_given(self, path: Path, version: Version) -> Graph:
        """The graph that this file or directory has now."""
        if not path.exists():
            raise GraphError(_needs(version, path))
        key = identity.of_graph(path)
        return self._graphs.built((path, key), lambda: self._captured(path))

    def _captured(self, path: Path) -> Graph:
        return captured(path, self._allowed) if path.is_dir() else _of_file(path, self._allowed)


def captured(directory: Path, allowed: frozenset[str]) -> Graph:
    """The graph of a SavedModel. Logs which of its signatures cannot be served. Raises GraphError where none can."""
    graph = capture(directory, allowed=allowed).graph
    for name, why in graph.refused.items():
        _log.warning("%s: signature %s is not served: %s", directory, files.shown(name), line(why))
    return graph


def _of_file(path: Path, allowed: frozenset[str]) -> Graph:
    """Raises as Graph.load does."""
    content = files.content(path, limit=files.MAX_MESSAGE)

    def build() -> Graph:
        try:
            return Graph.from_bytes(content, allowed=allowed)
        except GraphError as error:
            raise type(error)(f"{path}: {error}") from error

    return RECENT.built((hashlib.sha256(content).digest(), allowed), build)


def _needs(version: Version, path: Path) -> str:
    return f"version {version.number} needs the graph file {path}, which is not there"
