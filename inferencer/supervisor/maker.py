"""Makes the models of a server whose workers answer: the supervisor follows their stores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paramsync.following.follower import Follower
from paramsync.following.operator_request import Change
from paramsync.following.status import State, Status
from paramsync.sources.checkpoints import CheckpointSource
from paramsync.sources.kinds import DetectedSource
from paramsync.sources.saved_models import SavedModelsSource
from paramsync.sources.source import ProgressCallback
from paramsync.store.store import Store
from paramsync.version import Version

from ..processes.messages import Joining, ModelMessage
from ..serving.served import FollowedModel, Maker, ServedJoined
from ..settings.settings import ConnectionSettings, ModelSettings
from .fleet import Fleet
from .imports import Importer
from .versions import CheckpointBuild, KnownGraphs, SharedResidents, SharedVersion


class SharedMaker(Maker):
    """See Maker."""

    def __init__(self, fleet: Fleet, *, poll_seconds: float, state: Path | None) -> None:
        super().__init__(poll_seconds=poll_seconds, state=state)
        self._fleet = fleet

    def _follower(self, settings: ModelSettings, change: Change | None) -> Follower[Any]:
        graphs = KnownGraphs()
        source = self._source(settings, graphs)
        residents = SharedResidents(settings.name, source, self._fleet, graphs, resident=settings.resident)
        return Follower(
            residents,
            poll_seconds=self.poll_seconds,
            keep=self.state,
            labels=settings.labels,
            latest=settings.latest,
            change=change,
        )

    def _source(self, settings: ModelSettings, graphs: KnownGraphs) -> DetectedSource[SharedVersion]:
        build = CheckpointBuild(Store(settings.store), self._fleet, graphs, allowed=settings.allowed)
        importer = Importer(settings, self._fleet, graphs)
        checkpoints = _Checkpoints(settings, build, importer)
        told = "graph" if settings.graph is not None else "inputs and outputs" if settings.inputs else ""
        return DetectedSource(settings.store, checkpoints, SavedModelsSource(settings.store, importer.restored), told)

    def _joined(self, settings: ConnectionSettings, first: FollowedModel, second: FollowedModel) -> ServedJoined:
        return SharedJoined(settings, first, second, self._fleet)

    def join(self, served: Mapping[str, FollowedModel]) -> None:
        joined = [one for one in served.values() if isinstance(one, SharedJoined)]
        if joined:
            found = self._fleet.join([message_of(one, awaited=False)[0] for one in served.values()])
            for one in joined:
                one.tried = found.get(one.name)


def message_of(one: FollowedModel, *, awaited: bool) -> tuple[ModelMessage, Any]:
    """What workers are told of a model, and what has to be kept for as long as they answer from it."""
    if isinstance(one, ServedJoined):
        return ModelMessage(one.settings, one.status(), awaited=awaited), None
    view = one.followers[0].replica.view
    message = ModelMessage(
        one.settings,
        one.status(),
        recent=tuple(each.files.message.key for each in view.recent),
        labels={label: each.files.message.key for label, each in view.labels.items()},
        beside=tuple(each.files.message.key for each in view.beside),
        awaited=awaited,
    )
    return message, view


class SharedJoined(ServedJoined):
    """Joined in each worker, whose answers say what came of it."""

    def __init__(self, settings: ConnectionSettings, first: FollowedModel, second: FollowedModel, fleet: Fleet) -> None:
        super().__init__(settings, first, second)
        self._names = (settings.first, settings.second)
        self._fleet = fleet
        self.tried: Joining | None = None
        """What came of it while a configuration is on trial."""

    def joined(self) -> Status:
        residents = self.followers[1].replica
        joining = self.tried or self._fleet.joined.get(self.name)
        versions = None if joining is None else joining.versions
        serving = None if versions is None else versions[1]
        return Status(
            model=self.name,
            store=residents.source.path,
            state=State.WAITING if serving is None else State.SERVING,
            serving=serving,
            parts=() if versions is None else tuple(zip(self._names, versions, strict=True)),
            labels={} if serving is None else residents.labels,
            resident=() if serving is None else tuple(dict.fromkeys(one.version.number for one in residents.residents)),
            last_error=None if joining is None else joining.problem or None,
        )

    def close(self) -> None:
        """Workers join what they are told to."""


class _Checkpoints(CheckpointSource[SharedVersion]):
    """Those that name their graph are handed on as they are, and others imported."""

    def __init__(self, settings: ModelSettings, build: CheckpointBuild, importer: Importer) -> None:
        super().__init__(settings.store, build, graph=settings.graph, verification=settings.verify, answers_here=False)
        self._importer = importer

    def restore(self, version: Version, tell: ProgressCallback) -> SharedVersion:
        return super().restore(version, tell) if version.graph else self._importer.restore(version, tell)
