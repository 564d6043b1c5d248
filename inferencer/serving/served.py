"""What a server answers for under one name: a model that follows its store, or two such models joined."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from paramsync.following.composite import Connection
from paramsync.following.follower import Follower
from paramsync.following.operator_request import Change
from paramsync.following.replica import Replica
from paramsync.following.status import State, Status
from paramsync.inference.resident import Resident

from ..event_loop.idle import Rests
from ..settings.settings import AnySettings, ConnectionSettings, ModelSettings

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

    @property
    def followers(self) -> tuple[Follower, ...]:
        """Who keeps it at the right version: one for each store."""

    def take(self, version: int | None = None, label: str = "") -> Resident:
        """The version that serves, or the one asked for.

        Raises NotServingError, UnknownVersionError, UnknownLabelError.
        """

    def status(self) -> Status: ...


class ServedModel:
    """A model with a store."""

    def __init__(self, settings: ModelSettings, follower: Follower) -> None:
        self.name = settings.name
        self.settings = settings
        self.batched = settings.batching
        self.followers = (follower,)
        self.take = follower.replica.take
        self.status = follower.status


class ServedConnection:
    """Two models of the same server, joined."""

    def __init__(self, settings: ConnectionSettings, first: Served, second: Served) -> None:
        self.name = settings.name
        self.settings = settings
        self.batched = first.batched and second.batched
        self.followers = (*first.followers, *second.followers)
        replicas = [one.replica for one in self.followers]
        self.connection = Connection(settings.name, replicas[0], replicas[1], settings.inputs, settings.outputs)
        self.take = self.connection.take

    def status(self) -> Status:
        """What is joined, in the words of a model. What is published is what the second one's store has."""
        status, last = self.connection.status(), self.followers[1].status()
        state = State.DRAINING if last.state is State.DRAINING else status.state
        return replace(status, state=state, published=last.published).at(time.time())


def followers_of(served: Iterable[Served]) -> list[Follower]:
    """Each once."""
    return list(dict.fromkeys(follower for one in served for follower in one.followers))


class Maker:
    """Makes what settings name, and brings it to its end. Any thread, one at a time."""

    def __init__(self, *, poll_seconds: float, state: Path | None, rests: Rests | None = None) -> None:
        self._poll_seconds = poll_seconds
        self._state = state
        self._rests = rests

    def make(
        self, models: Sequence[AnySettings], before: Mapping[str, Served], changes: Mapping[str, Change] | None = None
    ) -> dict[str, Served]:
        """By name. What was there before with the same settings is there again, and so is who follows a store that is
        read as before. For who is new, what is said of changes counts from the start. Raises ParamsyncError."""
        made: dict[str, Served] = {}
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

    def _connection(self, settings: ConnectionSettings, made: Mapping[str, Served], before: Served | None) -> Served:
        first, second = made[settings.first], made[settings.second]
        if (
            before is not None
            and before.settings == settings
            and before.followers == first.followers + second.followers
        ):
            return before
        return ServedConnection(settings, first, second)

    def _model(self, settings: ModelSettings, before: Served | None, change: Change | None) -> Served:
        if before is not None and before.settings == settings:
            return before
        if before is None or not _followed_alike(before.settings, settings):
            return ServedModel(settings, self._follower(settings, change))
        [follower] = before.followers
        return ServedModel(settings, follower)

    def _follower(self, settings: ModelSettings, change: Change | None) -> Follower:
        replica = Replica(
            settings.name,
            settings.store,
            resident=settings.resident,
            inputs=settings.inputs,
            outputs=settings.outputs,
            graph=settings.graph,
            verification=settings.verify,
            allowed=settings.allowed,
        )
        return Follower(
            replica,
            poll_seconds=self._poll_seconds,
            keep=self._state,
            labels=settings.labels,
            latest=settings.latest,
            change=change,
            rests=self._rests,
        )

    def end(self, gone: Iterable[Served], *, kept: Collection[Served]) -> None:
        """What is gone and not kept is followed no more, and freed once no request holds it. Returns at once."""
        for one in gone:
            if isinstance(one, ServedConnection) and one not in kept:
                one.connection.close()
        for follower in followers_of(gone):
            if follower not in followers_of(kept):
                follower.drain(_GONE)
                threading.Thread(target=_end, args=(follower,), name=f"end {follower.model}", daemon=True).start()


def _end(follower: Follower) -> None:
    follower.close()
    follower.release()


def _followed_alike(one: AnySettings, other: ModelSettings) -> bool:
    """Whether whoever follows for the one can do so for the other: what differs can be said to him, or is not his."""
    if not isinstance(one, ModelSettings):
        return False
    return (
        replace(one, labels=other.labels, latest=other.latest, trainer=other.trainer, batching=other.batching) == other
    )
