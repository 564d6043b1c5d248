"""Makes the models of a server: the supervisor follows their stores, and workers answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paramsync.following.follower import Follower
from paramsync.following.pins_file import Change
from paramsync.status import State, Status

from ..processes.messages import Joining, ModelMessage
from ..serving.served import FollowedModel, Maker, ServedJoined
from ..settings.settings import ConnectionSettings, ModelSettings
from .fleet import Fleet
from .versions import SharedResidents


class SharedMaker(Maker):
    """See Maker."""

    def __init__(self, fleet: Fleet, *, poll_seconds: float, state: Path | None, tracing: bool) -> None:
        """With `tracing`, each version gets a span when it begins to serve."""
        super().__init__(poll_seconds=poll_seconds, state=state)
        self._fleet = fleet
        self._tracing = tracing

    def _follower(self, settings: ModelSettings, change: Change | None) -> Follower[Any]:
        follower = Follower(
            SharedResidents(settings, self._fleet),
            poll_seconds=self.poll_seconds,
            keep=self.state,
            labels=settings.labels,
            latest=settings.latest,
            change=change,
            serve_damaged=settings.serve_damaged,
        )
        if self._tracing:
            from ..serving.spans import VersionSpans

            VersionSpans(follower)  # kept by its subscription
        return follower

    def _joined(self, settings: ConnectionSettings, first: FollowedModel, second: FollowedModel) -> ServedJoined:
        return SharedJoined(settings, first, second, self._fleet)

    def join(self, served: Mapping[str, FollowedModel]) -> None:
        joined = [model for model in served.values() if isinstance(model, SharedJoined)]
        if joined:
            joinings = self._fleet.epochs.join([message_of(model, awaited=False) for model in served.values()])
            for model in joined:
                model.tried = joinings.get(model.name)


def message_of(model: FollowedModel, *, awaited: bool) -> tuple[ModelMessage, Any]:
    """The message about a model to workers, and an object that must stay alive while they answer from the model."""
    if isinstance(model, ServedJoined):
        return ModelMessage(model.settings, model.status(), awaited=awaited), None
    view = model.followers[0].replica.view
    message = ModelMessage(
        model.settings,
        model.status(),
        recent=tuple(version.message.key for version in view.recent),
        labels={label: version.message.key for label, version in view.labels.items()},
        beside=tuple(version.message.key for version in view.beside),
        awaited=awaited,
    )
    return message, view


def parts_of(model: FollowedModel) -> tuple[str, ...]:
    """The names of the models whose versions answer for a model."""
    settings = model.settings
    return (settings.first, settings.second) if isinstance(settings, ConnectionSettings) else (model.name,)


class SharedJoined(ServedJoined):
    """A joined model: each worker joins the two models, and reports the outcome."""

    def __init__(self, settings: ConnectionSettings, first: FollowedModel, second: FollowedModel, fleet: Fleet) -> None:
        super().__init__(settings, first, second)
        self._names = (settings.first, settings.second)
        self._fleet = fleet
        self.tried: Joining | None = None
        """The outcome while a configuration is on trial."""

    def joined(self) -> Status:
        residents = self.followers[1].replica
        joining = self.tried or self._fleet.epochs.joined.get(self.name)
        versions = None if joining is None else joining.versions
        serving = None if versions is None else versions[1]
        return Status(
            model=self.name,
            store=residents.source.path,
            state=State.WAITING if serving is None else State.SERVING,
            serving=serving,
            parts=() if versions is None else tuple(zip(self._names, versions, strict=True)),
            labels={} if serving is None else residents.labels,
            resident=()
            if serving is None
            else tuple(dict.fromkeys(version.version.number for version in residents.residents)),
            reason="" if joining is None else joining.reason,
        )

    def close(self) -> None:
        """Nothing to do: workers forget the joined model with the next epoch."""
