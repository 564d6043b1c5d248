"""Makes the models of a server: the supervisor follows their stores, and workers answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from paramsync.following.follower import Follower
from paramsync.following.pins_file import Change
from paramsync.status import State, Status

from ..processes.messages import Joining, ModelMessage
from ..serving.counts import Followed
from ..serving.served import ServedModel
from ..settings.settings import AnySettings, ConnectionSettings, ModelSettings
from .epochs import Epochs
from .fleet import Fleet
from .versions import SharedResidents

_GONE = "it is not served any more, or from another store"


class JoinedModel:
    """Two models of the same server, joined into one: each worker joins them, and reports the outcome."""

    def __init__(
        self, settings: ConnectionSettings, first: FollowedModel, second: FollowedModel, epochs: Epochs
    ) -> None:
        self.name = settings.name
        self.settings = settings
        self.followers: tuple[Follower[Any], ...] = (*first.followers, *second.followers)
        self._epochs = epochs
        self.tried: Joining | None = None
        """The outcome of joining for a configuration that is not in effect yet; otherwise None."""

    def status(self) -> Status:
        """Return the status of the joined model. Published versions are those of the second model's store."""
        first, last = (follower.status() for follower in self.followers)
        joining = self.tried or self._epochs.joined.get(self.name)
        status = Status(
            model=self.name,
            store=last.store,
            state=State.WAITING,
            reason="" if joining is None else joining.reason,
            published=last.published,
            found_at=last.found_at,
            overdue=last.overdue,
            lag_versions=last.lag_versions,
        )
        if joining is not None and joining.versions is not None:
            residents = self.followers[1].replica
            status = replace(
                status,
                state=State.DAMAGED if State.DAMAGED in (first.state, last.state) else State.SERVING,
                serving=joining.versions[1],
                parts=tuple(zip((self.settings.first, self.settings.second), joining.versions, strict=True)),
                labels=residents.labels,
                resident=tuple(dict.fromkeys(version.version.number for version in residents.residents)),
            )
        if last.state is State.DRAINING:
            status = replace(status, state=State.DRAINING)
        return status.at(time.time(), time.monotonic())


FollowedModel: TypeAlias = "ServedModel | JoinedModel"


def followers_of(models: Iterable[FollowedModel]) -> list[Follower[Any]]:
    """Return the followers of these models, each follower once."""
    return list(dict.fromkeys(follower for one in models for follower in one.followers))


class Maker:
    """Makes models from settings, and ends them. Only one thread at a time may use it."""

    def __init__(self, fleet: Fleet, *, poll_seconds: float, state: Path | None, tracing: bool) -> None:
        """With `tracing`, each version gets a span when it begins to serve."""
        self._fleet = fleet
        self._poll_seconds = poll_seconds
        self._state = state
        self._tracing = tracing

    def make(
        self,
        models: Sequence[AnySettings],
        before: Mapping[str, FollowedModel],
        changes: Mapping[str, Change] | None = None,
    ) -> dict[str, FollowedModel]:
        """Make the models, and return them by name. Raises ParamsyncError.

        A model of `before` with the same settings is kept. A follower is kept if its store is read in the same way. A
        new follower begins with the pin, labels and memory that `changes` has for its model.
        """
        made: dict[str, FollowedModel] = {}
        try:
            for one in models:
                if isinstance(one, ModelSettings):
                    made[one.name] = self._model(one, before.get(one.name), (changes or {}).get(one.name))
            for one in models:
                if isinstance(one, ConnectionSettings):
                    made[one.name] = self._joined(one, made, before.get(one.name))
        except BaseException:
            self.end(made.values(), kept=before.values())
            raise
        return {one.name: made[one.name] for one in models}

    def _model(self, settings: ModelSettings, before: FollowedModel | None, change: Change | None) -> FollowedModel:
        if before is not None and before.settings == settings:
            return before
        if isinstance(before, ServedModel) and _can_share_follower(before.settings, settings):
            return ServedModel(settings, before.followed)
        return ServedModel(settings, Followed(self._follower(settings, change)))

    def _joined(
        self, settings: ConnectionSettings, made: Mapping[str, FollowedModel], before: FollowedModel | None
    ) -> FollowedModel:
        joined = JoinedModel(settings, made[settings.first], made[settings.second], self._fleet.epochs)
        if before is not None and before.settings == settings and before.followers == joined.followers:
            return before
        return joined

    def _follower(self, settings: ModelSettings, change: Change | None) -> Follower[Any]:
        follower = Follower(
            SharedResidents(settings, self._fleet),
            poll_seconds=self._poll_seconds,
            keep=self._state,
            labels=settings.labels,
            latest=settings.latest,
            change=change,
            serve_damaged=settings.serve_damaged,
        )
        if self._tracing:
            from ..serving.spans import VersionSpans

            VersionSpans(follower)  # the follower's subscription keeps the object alive
        return follower

    def join(self, models: Mapping[str, FollowedModel]) -> None:
        """Have workers join the versions of joined models, and keep the outcomes in `JoinedModel.tried`."""
        joined = [model for model in models.values() if isinstance(model, JoinedModel)]
        if joined:
            joinings = self._fleet.epochs.join([message_of(model, awaited=False) for model in models.values()])
            for model in joined:
                model.tried = joinings.get(model.name)

    def end(self, gone: Iterable[FollowedModel], *, kept: Collection[FollowedModel]) -> None:
        """End the followers of `gone` models, except followers of `kept` models. Returns at once."""
        for follower in followers_of(gone):
            if follower not in followers_of(kept):
                follower.drain(_GONE)
                threading.Thread(target=_end, args=(follower,), name=f"end {follower.model}", daemon=True).start()


def _end(follower: Follower[Any]) -> None:
    follower.close()
    follower.release()


def _can_share_follower(one: ModelSettings, other: ModelSettings) -> bool:
    """True if `one`'s follower can be kept for `other`: only `labels`, `latest`, `trainer` or `batching` differ."""
    return (
        replace(one, labels=other.labels, latest=other.latest, trainer=other.trainer, batching=other.batching) == other
    )


def message_of(model: FollowedModel, *, awaited: bool) -> tuple[ModelMessage, Any]:
    """Return a model's message to workers, and an object that must stay alive while they answer from the model."""
    if isinstance(model, JoinedModel):
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
    """Return the names of the models whose versions answer for a model."""
    settings = model.settings
    return (settings.first, settings.second) if isinstance(settings, ConnectionSettings) else (model.name,)
