"""How versions come to the workers: checked here and handed on with their locks, or imported."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError, GraphError
from paramsync.following.residents import Residents
from paramsync.graphs.specs import located
from paramsync.host import files
from paramsync.sources.checkpoints import Checkpoints, GraphCache
from paramsync.sources.source import Progress, ProgressCallback, Source, graph_options
from paramsync.store.signing import TrustedKeys, of_saved_model
from paramsync.store.store import Store
from paramsync.version import InMemory, Version

from ..processes.messages import ParameterPlace, VersionMessage
from ..settings.settings import ModelSettings
from .fleet import Fleet
from .imports import Importer
from .shared import SharedGraph, SharedVersion


class SharedResidents(Residents[SharedVersion]):
    """The versions of one model that the workers answer from."""

    def __init__(self, settings: ModelSettings, fleet: Fleet) -> None:
        self._fleet = fleet
        self.crashing: dict[int, str] = {}
        """Versions on which workers crash, by their keys, and how. Any thread adds to it."""
        self._restores = restores = SharedRestores(settings, fleet)
        options = graph_options(settings.graph, settings.inputs)
        source = Source(settings.store, restores, graph=settings.graph, options=options, signed=bool(settings.trust))
        super().__init__(settings.name, source, resident=settings.resident, changed=fleet.change)

    @property
    def trouble(self) -> str:
        return self._fleet.trouble

    def failing(self) -> dict[SharedVersion, str]:
        by_key = {version.message.key: version for version in self.residents}
        reasons = {key: self.crashing.pop(key) for key in list(self.crashing)}
        return {by_key[key]: reason for key, reason in reasons.items() if key in by_key}

    def tend(self) -> None:
        before = self.leaving
        super().tend()
        if self.leaving != before:
            self._fleet.forget()

    def release(self) -> None:
        super().release()
        self._restores.graphs.clear()  # not when all of this is collected: each has a file open


class SharedRestores:
    """See Restores. Checkpoints that name their graph are handed on as they are, and all others imported."""

    def __init__(self, settings: ModelSettings, fleet: Fleet) -> None:
        self.graphs: GraphCache[SharedGraph] = GraphCache()
        self._store = Store(settings.store)
        self._fleet = fleet
        self._allowed = settings.allowed
        self._trust = TrustedKeys(settings.trust) if settings.trust else None
        self._importer = Importer(settings, fleet, self.graphs)
        self._checkpoints: Checkpoints[SharedVersion] = Checkpoints(
            self._store, located, verification=settings.verify, answers_here=False, trust=self._trust
        )

    def damage(self, resident: InMemory) -> CorruptCheckpointError | None:
        """See Checkpoints."""
        assert isinstance(resident, SharedVersion)
        return self._checkpoints.damage(resident, resident.descriptors)

    def saved_model(self, version: Version, directory: Path, tell: ProgressCallback) -> SharedVersion:
        if self._trust is not None:
            raise of_saved_model(version)
        return self._ready(self._importer.restore(version, tell), tell)

    def checkpoint(self, version: Version, tell: ProgressCallback) -> SharedVersion:
        key: Hashable = version.graph
        if self._trust is not None:
            self._trust.check_record(version)
            key = version.graph, version.graph_file
        if not version.graph:
            return self._ready(self._importer.restore(version, tell), tell)
        graph = self.graphs.built(key, lambda: self._read(version))

        def build(bundle: Bundle, keys: Sequence[str]) -> SharedVersion:
            named = zip(graph.parameters, keys, strict=True)
            loan = bundle.lend(keys, [key for spec, key in named if spec.name not in graph.embeddings])
            message = VersionMessage(
                key=self._fleet.key(),
                version=version,
                graph=graph.message,
                sizes=loan.sizes,
                parameters=[ParameterPlace(*place) if isinstance(place, tuple) else place for place in loan.places],
                ranges=loan.ranges,
            )
            return SharedVersion(graph, message, loan.descriptors, bundle, keys if self._trust is None else ())

        return self._ready(self._checkpoints.restore(version, graph, build, tell), tell)

    def _ready(self, version: SharedVersion, tell: ProgressCallback) -> SharedVersion:
        """Have every worker map it."""
        self._fleet.prepare(version, lambda: tell(Progress(phase="warming")))
        return version

    def _read(self, version: Version) -> SharedGraph:
        path = self._store.graph_file(version.graph)
        try:
            content = files.content(path, limit=files.MAX_MESSAGE)
        except FileNotFoundError as error:
            raise GraphError(f"version {version.number} needs the graph file {path}, which is not there") from error
        if self._trust is not None:
            self._trust.check_graph(version, content, path)
        graph = self._fleet.graph(content, allowed=self._allowed)
        try:
            digest, embeddings = self._fleet.try_graph(graph)
        except GraphError as error:
            raise type(error)(f"{path}: {error}") from error
        if digest != version.graph:
            raise GraphError(f"{path}: expected the graph {version.graph}, found {digest}")
        return graph.describe(content, embeddings)
