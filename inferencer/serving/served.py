"""What a server answers for under one name: a model that follows its store, or two such models joined."""

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
from paramsync.following.operator_request import Change
from paramsync.status import State, Status

from ..settings.settings import AnySettings, ConnectionSettings, ModelSettings
from .counts import Followed

if TYPE_CHECKING:
    from paramsync.inference.resident import Resident

_GONE = "it is not served any more, or from another store"


class Served(Protocol):
    """Any thread may ask it, for as long as it likes: it stays what it is when the server's models change."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> AnySettings: ...

    @property
    def batched(self) -> bool:
        """Whether requests that wait together may go in one call."""

    def take(self, version: int | None = None, label: str = "") -> Resident:
        """The version that serves, or the one asked for.

        Raises NotServingError, UnknownVersionError, UnknownLabelError.
        """

    def status(self) -> Status: ...


class Models(Protocol):
    """What a server answers for now. `changed` is set, and another one in its place, once these are other ones."""

    changed: asyncio.Event

    def __iter__(self) -> Iterator[Served]: ...

    def find(self, model: str) -> Served:
        """Raises UnknownModelError."""

    def some(self, model: str) -> Sequence[Served]:
        """The one of that name; all where none is named. Raises UnknownModelError."""

    def batched(self, model: str) -> bool:
        """Whether requests of this model that wait together may go in one call."""

    def followers(self, model: str = "") -> Sequence[Any]:
        """Those of one model, or of all, each once. Raises UnknownModelError."""

    def missing(self) -> Mapping[str, str]:
        """Of the models that were there from the start those that do not serve, or not yet, and why."""


def followers_of(served: Iterable[FollowedModel]) -> list[Follower[Any]]:
    """Each once."""
    return list(dict.fromkeys(follower for one in served for follower in one.followers))


class ServedModel:
    """A model with a store. `followers` keep a model at the right version: one for each store."""

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
    """Two models of the same server, joined."""

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
        """State, version and problem of what is joined."""

    @abstractmethod
    def close(self) -> None:
        """Join nothing more."""

    def status(self) -> Status:
        """What is joined, in the words of a model. What is published is what the second one's store has."""
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
    """Makes what settings name, and brings it to its end. Any thread, one at a time."""

    def __init__(self, *, poll_seconds: float, state: Path | None) -> None:
        self.poll_seconds = poll_seconds
        self.state = state

    def make(
        self,
        models: Sequence[AnySettings],
        before: Mapping[str, FollowedModel],
        changes: Mapping[str, Change] | None = None,
    ) -> dict[str, FollowedModel]:
        """By name. What was there before with the same settings is there again, and so is who follows a store that is
        read as before. For who is new, what is said of changes counts from the start. Raises ParamsyncError."""
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
        if isinstance(before, ServedModel) and _followed_alike(before.settings, settings):
            return ServedModel(settings, before.followed)
        return ServedModel(settings, Followed(self._follower(settings, change)))

    @abstractmethod
    def _follower(self, settings: ModelSettings, change: Change | None) -> Follower[Any]: ...

    @abstractmethod
    def _joined(self, settings: ConnectionSettings, first: FollowedModel, second: FollowedModel) -> ServedJoined: ...

    @abstractmethod
    def join(self, served: Mapping[str, FollowedModel]) -> None:
        """Have models that are joined ready to answer, as far as they can be."""

    def end(self, gone: Iterable[FollowedModel], *, kept: Collection[FollowedModel]) -> None:
        """What is gone and not kept is followed no more, and freed once no request holds it. Returns at once."""
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


def _followed_alike(one: ModelSettings, other: ModelSettings) -> bool:
    """Whether whoever follows for the one can do so for the other: what differs can be said to him, or is not his."""
    return (
        replace(one, labels=other.labels, latest=other.latest, trainer=other.trainer, batching=other.batching) == other
    )
