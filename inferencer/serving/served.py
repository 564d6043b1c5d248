"""A served model: one that follows its store, or two such models joined."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from paramsync.following.follower import Follower
from paramsync.following.pins_file import Change
from paramsync.status import State, Status

from ..settings.settings import AnySettings, ConnectionSettings, ModelSettings
from .counts import Followed

if TYPE_CHECKING:
    from paramsync.inference.resident import Resident

_GONE = "it is not served any more, or from another store"


class Served(Protocol):
    """A model, for any thread. It stays valid when the server's models change."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> AnySettings: ...

    @property
    def batched(self) -> bool:
        """Whether waiting requests may share a call."""

    def take(self, version: int | None = None, label: str = "") -> Resident:
        """The version with this number or label; without both, the version that serves.

        Raises NotServingError, UnknownVersionError, UnknownLabelError.
        """

    def status(self) -> Status: ...


class Models(Protocol):
    """The models of a server now. At a change, `changed` is set and another event takes its place."""

    changed: asyncio.Event

    def __iter__(self) -> Iterator[Served]: ...

    def find(self, model: str) -> Served:
        """Raises UnknownModelError."""

    def some(self, model: str) -> Sequence[Served]:
        """The model of this name, or all models for an empty name. Raises UnknownModelError."""

    def batched(self, model: str) -> bool:
        """Whether waiting requests of this model may share a call."""

    def followers(self, model: str = "") -> Sequence[Any]:
        """The followers of one model, or of all models, each follower once. Raises UnknownModelError."""

    def missing(self) -> Mapping[str, str]:
        """The models configured at the start that do not serve, each with the reason if known."""


def followers_of(served: Iterable[FollowedModel]) -> list[Follower[Any]]:
    """The followers of these models, each follower once."""
    return list(dict.fromkeys(follower for one in served for follower in one.followers))


class ServedModel:
    """A model with a store, and its follower."""

    def __init__(self, settings: ModelSettings, followed: Followed) -> None:
        follower = followed.follower
        self.name = settings.name
        self.settings = settings
        self.batched = settings.batching
        self.followed = followed
        self.followers = (follower,)
        self.take = follower.replica.take
        self.status = follower.status


class ServedJoined(ABC):
    """Two models of the same server, joined into one."""

    batched: bool
    followers: tuple[Follower[Any], ...]

    def __init__(self, settings: ConnectionSettings, first: FollowedModel, second: FollowedModel) -> None:
        self.name = settings.name
        self.settings = settings
        self.batched = first.batched and second.batched
        self.followers = (*first.followers, *second.followers)

    def take(self, version: int | None = None, label: str = "") -> Resident:
        raise NotImplementedError("other processes answer")

    @abstractmethod
    def joined(self) -> Status:
        """State, version and problem of the joined model."""

    @abstractmethod
    def close(self) -> None:
        """Join no more versions."""

    def status(self) -> Status:
        """The status of the joined model. Published versions are those of the second model's store."""
        status, parts = self.joined(), [follower.status() for follower in self.followers]
        last, states = parts[-1], [part.state for part in parts]
        state = State.DRAINING if last.state is State.DRAINING else status.state
        if state is State.SERVING and State.DAMAGED in states:
            state = State.DAMAGED
        status = replace(
            status,
            state=state,
            published=last.published,
            found_at=last.found_at,
            overdue=last.overdue,
            lag_versions=last.lag_versions,
        )
        return status.at(time.time(), time.monotonic())


FollowedModel: TypeAlias = "ServedModel | ServedJoined"


class Maker(ABC):
    """Makes models from settings, and ends them. Any thread, but only one at a time."""

    def __init__(self, *, poll_seconds: float, state: Path | None) -> None:
        self.poll_seconds = poll_seconds
        self.state = state

    def make(
        self,
        models: Sequence[AnySettings],
        before: Mapping[str, FollowedModel],
        changes: Mapping[str, Change] | None = None,
    ) -> dict[str, FollowedModel]:
        """Make the models; returns them by name. A model of `before` with the same settings is kept, and so is a
        follower whose store is read in the same way. A new follower gets its model's changes. Raises ParamsyncError."""
        made: dict[str, FollowedModel] = {}
        try:
            for one in models:
                if isinstance(one, ModelSettings):
                    made[one.name] = self._model(one, before.get(one.name), (changes or {}).get(one.name))
            for one in models:
                if isinstance(one, ConnectionSettings):
                    made[one.name] = self._connection(one, made, before.get(one.name))
        except BaseException:
            self.end(made.values(), kept=before.values())
            raise
        return {one.name: made[one.name] for one in models}

    def _connection(
        self, settings: ConnectionSettings, made: Mapping[str, FollowedModel], before: FollowedModel | None
    ) -> FollowedModel:
        first, second = made[settings.first], made[settings.second]
        if (
            before is not None
            and before.settings == settings
            and before.followers == first.followers + second.followers
        ):
            return before
        return self._joined(settings, first, second)

    def _model(self, settings: ModelSettings, before: FollowedModel | None, change: Change | None) -> FollowedModel:
        if before is not None and before.settings == settings:
            return before
        if isinstance(before, ServedModel) and _can_share_follower(before.settings, settings):
            return ServedModel(settings, before.followed)
        return ServedModel(settings, Followed(self._follower(settings, change)))

    @abstractmethod
    def _follower(self, settings: ModelSettings, change: Change | None) -> Follower[Any]: ...

    @abstractmethod
    def _joined(self, settings: ConnectionSettings, first: FollowedModel, second: FollowedModel) -> ServedJoined: ...

    @abstractmethod
    def join(self, served: Mapping[str, FollowedModel]) -> None:
        """Join the versions of joined models, as far as they fit together."""

    def end(self, gone: Iterable[FollowedModel], *, kept: Collection[FollowedModel]) -> None:
        """End the followers of `gone` models, except those of `kept` models. Returns at once."""
        for one in gone:
            if isinstance(one, ServedJoined) and one not in kept:
                one.close()
        for follower in followers_of(gone):
            if follower not in followers_of(kept):
                follower.drain(_GONE)
                threading.Thread(target=_end, args=(follower,), name=f"end {follower.model}", daemon=True).start()


def _end(follower: Follower[Any]) -> None:
    follower.close()
    follower.release()


def _can_share_follower(one: ModelSettings, other: ModelSettings) -> bool:
    """True if `one`'s follower can be kept for `other`: only labels, memory, trainer or batching differ."""
    return (
        replace(one, labels=other.labels, latest=other.latest, trainer=other.trainer, batching=other.batching) == other
    )
