"""What a version is in the supervisor: checked, held by its locks, and handed to the workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import GraphError
from paramsync.following.residents import Residents
from paramsync.graphs.locating import located
from paramsync.graphs.specs import TensorSpec, spec_of
from paramsync.host import files
from paramsync.sources.source import Progress, ProgressCallback, Source
from paramsync.store.store import Store
from paramsync.v1 import graph_pb2
from paramsync.version import Version

from ..processes.messages import Place, VersionMessage
from .fleet import Fleet
from .shared import SharedFiles, SharedGraph

_KEPT = 4  # graphs: those of a version and its predecessor, and of some that were there before


@dataclass(frozen=True, eq=False)
class GraphFacts:
    """What has to be known of a graph to check a checkpoint for it, and the graph itself, for the workers."""

    shared: SharedGraph
    digest: str
    parameters: Sequence[TensorSpec]
    called: Mapping[str, str]
    embeddings: Collection[str]
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SharedVersion:
    """A version that every worker has in memory."""

    version: Version
    graph: GraphFacts
    files: SharedFiles
    held: Any
    """What keeps its files from being overwritten."""


class KnownGraphs:
    """The graphs of one model that were used last: versions that have the same one share it. One thread."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, GraphFacts] = {}

    def find(self, key: Hashable, make: Callable[[], GraphFacts]) -> GraphFacts:
        found = self._graphs.pop(key, None) or make()
        self._graphs[key] = found
        while len(self._graphs) > _KEPT:
            del self._graphs[next(iter(self._graphs))]
        return found

    def clear(self) -> None:
        self._graphs.clear()


class SharedResidents(Residents[SharedVersion]):
    """The versions of one model that the workers answer from."""

    def __init__(
        self, model: str, source: Source[SharedVersion], fleet: Fleet, graphs: KnownGraphs, *, resident: int
    ) -> None:
        super().__init__(model, source, resident=resident)
        self._fleet = fleet
        self._graphs = graphs

    def release(self) -> None:
        super().release()
        self._graphs.clear()  # not when all of this is collected: each has a file open

    def _ready(self, restored: SharedVersion, tell: ProgressCallback) -> None:
        if not restored.files.graph.works:
            tell(Progress(phase="warming"))
        self._fleet.prepare(restored.files)

    def _parts(self, one: SharedVersion) -> tuple[Any, ...]:
        return ()

    def _show(self, view: Any) -> None:
        super()._show(view)
        self._fleet.change()


class CheckpointBuild:
    """See Build, for checkpoints that name their graph, as our publisher's do."""

    def __init__(self, store: Store, fleet: Fleet, graphs: KnownGraphs, *, allowed: Collection[str] = ()) -> None:
        self._store = store
        self._fleet = fleet
        self._allowed = tuple(allowed)
        self._graphs = graphs

    def graph(self, version: Version) -> GraphFacts:
        return self._graphs.find(version.graph, lambda: self._read(version))

    def keys(self, version: Version, graph: GraphFacts, bundle: Bundle) -> tuple[str, ...]:
        return located(graph, bundle, where=f"version {version.number}")

    def build(self, version: Version, graph: GraphFacts, bundle: Bundle, keys: Sequence[str]) -> SharedVersion:
        needed = [key for spec, key in zip(graph.parameters, keys, strict=True) if spec.name not in graph.embeddings]
        loan = bundle.lend(keys, needed)
        message = VersionMessage(
            key=self._fleet.key(),
            version=version,
            graph=graph.shared.key,
            sizes=loan.sizes,
            parameters=[Place(*one) if isinstance(one, tuple) else one for one in loan.places],
            ranges=loan.ranges,
        )
        return SharedVersion(version, graph, SharedFiles(graph.shared, message, loan.descriptors), bundle)

    def _read(self, version: Version) -> GraphFacts:
        path = self._store.graph_file(version.graph)
        try:
            content = files.content(path, limit=files.MAX_MESSAGE)
        except FileNotFoundError as error:
            raise GraphError(f"version {version.number} needs the graph file {path}, which is not there") from error
        shared = self._fleet.graph(content, allowed=self._allowed)
        try:
            digest, embeddings = self._fleet.try_graph(shared)
        except GraphError as error:
            raise type(error)(f"{path}: {error}") from error
        if digest != version.graph:
            raise GraphError(f"{path}: expected the graph {version.graph}, found {digest}")
        return facts(content, shared, digest, embeddings)


def facts(
    content: bytes,
    shared: SharedGraph,
    digest: str,
    embeddings: Collection[str],
    refused: Mapping[str, str] | None = None,
) -> GraphFacts:
    """Of a graph that could be built. Raises GraphError."""
    try:
        message = graph_pb2.Graph.FromString(content)
    except DecodeError as error:
        raise GraphError(f"the graph file is not readable: {error}") from error
    return GraphFacts(
        shared,
        digest,
        tuple(spec_of(one) for one in message.parameters),
        {one.name: one.variable for one in message.parameters if one.variable},
        embeddings,
        refused or {},
    )
