"""The graphs of the versions of one store: where each comes from, and those that are in memory already."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path

from paramsync.errors import GraphError, UnfinishedMetaError
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.meta_graphs import capture_meta
from paramsync.host import files
from paramsync.host.terminal import line
from paramsync.sources import identity
from paramsync.sources.recent_graphs import RECENT
from paramsync.store.store import Store
from paramsync.version import Version

_log = logging.getLogger("paramsync.sources")
_KEPT = 4  # graphs: those of a version and its predecessor, and of some that were there before


class Graphs:
    """What was built, by what it was built from. One thread owns it."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, Graph] = {}

    def known(self, key: Hashable, build: Callable[[], Graph]) -> Graph:
        found = self.find(key)
        return self._put(key, build()) if found is None else found

    def find(self, key: Hashable) -> Graph | None:
        found = self._graphs.pop(key, None)
        if found is not None:
            self._graphs[key] = found  # last in the order of use
        return found

    def keep(self, key: Hashable, graph: Graph) -> Graph:
        """The graph, or one with the same digest that is here already: then nothing has to be prepared for it again."""
        same = (one for one in self._graphs.values() if (one.digest, one.refused) == (graph.digest, graph.refused))
        return self._put(key, next(same, graph))

    def _put(self, key: Hashable, graph: Graph) -> Graph:
        self._graphs[key] = graph
        while len(self._graphs) > _KEPT:
            del self._graphs[next(iter(self._graphs))]
        return graph


class GivenGraphs:
    """Which graph the parameters of a checkpoint belong to: recorded, given, or written beside it by a Saver."""

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
        self._graphs = Graphs()

    def of(self, version: Version) -> Graph:
        """Raises GraphError, UnfinishedMetaError, UnsafeGraphError, CorruptCheckpointError, OSError."""
        if version.graph:
            return self._graphs.known(version.graph, lambda: self._published(version))
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
        return self._graphs.known(
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
        """The graph in this file or directory as it is now."""
        if not path.exists():
            raise GraphError(_needs(version, path))
        key = identity.of_graph(path)
        return self._graphs.known((path, key), lambda: self._captured(path))

    def _captured(self, path: Path) -> Graph:
        return captured(path, self._allowed) if path.is_dir() else _of_file(path, self._allowed)


def captured(directory: Path, allowed: frozenset[str]) -> Graph:
    """The graph of a SavedModel. Tells which of its signatures cannot be served. Raises GraphError where none can."""
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
