"""The graphs of the versions of one store: where each comes from, and caches of those that were built."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import GraphError, UnfinishedError, UnfinishedMetaError, UnsafeGraphError
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.parameters import located, shared
from paramsync.graphs.sources.meta_graphs import capture_meta
from paramsync.graphs.sources.v1_saved_models import variables
from paramsync.host import files
from paramsync.host.files import line
from paramsync.inference.resident import Resident
from paramsync.sources import identity
from paramsync.sources.saved_models import AS_TEXT, COMMIT
from paramsync.sources.source import Progress, ProgressCallback
from paramsync.sources.verification import verify
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
    """See Build. A checkpoint's graph is the recorded one, the given one, or the one that a Saver wrote beside it."""

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

    def keys(self, version: Version, graph: Graph, bundle: Bundle) -> tuple[str, ...]:
        return located(graph, bundle, where=f"version {version.number}")

    def build(self, version: Version, graph: Graph, bundle: Bundle, keys: Sequence[str]) -> Resident:
        return Resident(version, graph, shared(bundle, keys))

    def graph(self, version: Version) -> Graph:
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


class SavedModelGraphs:
    """Brings SavedModels into memory, whose graphs it keeps."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self._allowed = frozenset(allowed)
        self._graphs = GraphCache(OF_A_SOURCE)

    def restored(self, version: Version, directory: Path, tell: ProgressCallback) -> Resident:
        """Raises as Source.restore does."""
        tell(Progress("mapping"))
        graph = self._graph_of(directory)
        if not graph.parameters:
            return Resident(version, graph, ())
        bundle = variables(directory)
        keys = located(graph, bundle, where=f"version {version.number}")
        verify(bundle, keys, tell)
        return Resident(version, graph, shared(bundle, keys))

    def _graph_of(self, directory: Path) -> Graph:
        """The same SavedModel with other weights has the same graph, unless it has tables, which are in files too."""
        if not (directory / COMMIT).exists() and (directory / AS_TEXT).exists():
            raise GraphError(f"{directory}: expected {COMMIT}, found {AS_TEXT}: save it without as_text")
        content = files.content(directory / COMMIT, limit=files.MAX_MESSAGE)
        key = ("SavedModel", hashlib.sha256(content).digest(), self._allowed)
        if (known := self._graphs.find(key)) is not None:
            return known
        if (known := RECENT.find(key)) is not None:
            return self._graphs.keep(key, self._graphs.same_as(known))
        try:
            graph = captured(directory, self._allowed)
        except GraphError as error:
            if not isinstance(error, UnsafeGraphError) and _is_cut(content):
                raise UnfinishedError(str(error)) from error
            raise
        if files.content(directory / COMMIT, limit=files.MAX_MESSAGE) != content:
            raise UnfinishedError(f"{directory}: expected {COMMIT} at rest, found one that changed while it was read")
        known = self._graphs.same_as(graph)
        if graph.message().tables:
            return self._graphs.keep(graph.digest, known)
        return RECENT.keep(key, self._graphs.keep(key, known))


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


def _is_cut(content: bytes) -> bool:
    """Whether the file ends too early for a SavedModel, as while it is being written."""
    try:
        return not saved_model_pb2.SavedModel.FromString(content).meta_graphs
    except DecodeError:
        return True
