"""Brings versions to the workers: checks them in the supervisor and sends them with their locks, or imports them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from paramsync.checkpoint.reader import Bundle
from paramsync.following.residents import Residents
from paramsync.sources.checkpoints import Checkpoints
from paramsync.sources.source import Progress, ProgressCallback, Source, graph_options
from paramsync.store.signing import TrustedKeys
from paramsync.store.store import Store
from paramsync.version import Version

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
        """How workers crash on versions of any model, by the versions' keys. Any thread may add entries."""
        self._restores = restores = SharedRestores(settings, fleet)
        options = graph_options(settings.graph, settings.inputs)
        source = Source(settings.store, restores, graph=settings.graph, options=options, signed=bool(settings.trust))
        changed = partial(fleet.epochs.change, settings.name)
        super().__init__(settings.name, source, resident=settings.resident, changed=changed)

    @property
    def trouble(self) -> str:
        return self._fleet.workers.trouble

    def failing(self) -> dict[SharedVersion, str]:
        by_key = {version.message.key: version for version in self.residents}
        reasons = {key: self.crashing.pop(key) for key in list(self.crashing)}
        return {by_key[key]: reason for key, reason in reasons.items() if key in by_key}

    def tend(self) -> None:
        before = self.leaving
        super().tend()
        if self.leaving != before:
            self._fleet.epochs.forget()

    def release(self) -> None:
        super().release()
        self._restores.graphs.clear()  # at once, because each graph keeps a file open


class SharedRestores(Checkpoints[SharedGraph, SharedVersion]):
    """Restores versions for the workers. Checkpoints that name their graph are sent unchanged; others are imported."""

    answers_here = False

    def __init__(self, settings: ModelSettings, fleet: Fleet) -> None:
        trust = TrustedKeys(settings.trust) if settings.trust else None
        super().__init__(Store(settings.store), verification=settings.verify, trust=trust)
        self._fleet = fleet
        self._allowed = settings.allowed
        self._importer = Importer(settings, fleet, self.graphs)

    def build_graph(self, content: bytes) -> tuple[SharedGraph, str]:
        graph = self._fleet.trials.graph(content, allowed=self._allowed)
        digest, embeddings = self._fleet.trials.build(graph)
        return graph.describe(content, embeddings), digest

    def make_resident(self, version: Version, graph: SharedGraph, bundle: Bundle, keys: Sequence[str]) -> SharedVersion:
        named = zip(graph.parameters, keys, strict=True)
        loan = bundle.lend(keys, [key for spec, key in named if spec.name not in graph.embeddings])
        message = VersionMessage(
            key=self._fleet.trials.key(),
            version=version,
            graph=graph.message,
            sizes=loan.sizes,
            parameters=[ParameterPlace(*place) if isinstance(place, tuple) else place for place in loan.places],
            ranges=loan.ranges,
        )
        return SharedVersion(graph, message, loan.descriptors, bundle, keys if self.trust is None else ())

    def copy_unrecorded(self, version: Version, tell: ProgressCallback) -> SharedVersion:
        return self._importer.restore(version, tell)

    def copy_saved_model(self, version: Version, directory: Path, tell: ProgressCallback) -> SharedVersion:
        return self._importer.restore(version, tell)

    def warm(self, resident: SharedVersion, tell: ProgressCallback) -> SharedVersion:
        """Have every worker map the version."""
        self._fleet.prepare(resident, lambda: tell(Progress(phase="warming")))
        return resident
