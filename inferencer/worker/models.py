"""The models that a worker answers for, according to the supervisor's last message.

An epoch is what all workers answer from between two changes: see docs/threads.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from paramsync.errors import NotServingError, UnknownModelError, UnknownVersionError
from paramsync.inference.resident import Resident
from paramsync.status import EVERY_KIND, EventKind, State, Status, nothing_serves
from paramsync.version import View

from ..processes.channel import Channel
from ..processes.messages import Joining
from ..settings.settings import AnySettings, ConnectionSettings

_LATE_SECONDS = 10.0  # how long the supervisor may take to say why a sync is late


@dataclass(eq=False)
class Model:
    """One model of one epoch. Any thread may use it, even after the epoch."""

    settings: AnySettings
    view: View[Resident]
    last: Status
    """The status that the follower last reported."""
    awaited: bool = False
    joining: Joining | None = None

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def batched(self) -> bool:
        return not isinstance(self.settings, ConnectionSettings) and self.settings.batching

    def take(self, version: int | None = None, label: str = "") -> Resident:
        """Return the version that serves, or the version with this number or label.

        Raises NotServingError, UnknownVersionError, UnknownLabelError.
        """
        view = self.view
        if not view.recent and self.joining is not None:
            raise NotServingError(self.name, self.joining.reason)
        if not view.recent:
            raise NotServingError(self.name, nothing_serves(self.last.store, self.last.short_reason))
        try:
            return view.take(self.name, version, label)
        except UnknownVersionError as error:
            case = None if version is None else self.last.quarantine_of(version)
            if case is None:
                raise
            raise UnknownVersionError(f"model {self.name!r}", case.number, view.numbered, case.short) from error

    def status(self) -> Status:
        """Return the last status, with the version that answers in this process."""
        status, view = self.last, self.view
        if view.recent and status.serving != view.recent[0].version:
            numbers = tuple(dict.fromkeys(resident.version.number for resident in view.residents))
            state = State.DRAINING if status.state is State.DRAINING else State.SERVING
            status = replace(status, state=state, serving=view.recent[0].version, served_at=math.inf, resident=numbers)
        return status.at(time.time(), time.monotonic())


class RemoteFollower:
    """A proxy of a follower in the supervisor."""

    def __init__(self, model: str, models: EpochModels) -> None:
        self.model = model
        self._models = models

    def status(self) -> Status:
        return self._models.find(self.model).status()

    def ask(self, *arguments: Any) -> Future[Status]:
        return self._models.supervisor.ask("follow", self.model, *arguments)

    def late(self, number: int | None, seconds: float | None) -> str:
        return str(self._models.supervisor.ask("late", self.model, number, seconds).result(_LATE_SECONDS))

    def subscribe(self, wake: Callable[[], None], kinds: Collection[EventKind] = EVERY_KIND) -> ModelsSubscription:
        return ModelsSubscription(wake, self._models)


class ModelsSubscription:
    """Wakes its owner at every change of any model. It carries no events: the owner reads the statuses again."""

    fell_behind = False

    def __init__(self, wake: Callable[[], None], models: EpochModels) -> None:
        self._wake = wake
        self._models = models
        models.wakes.append(wake)

    def take(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        if self._wake in self._models.wakes:
            self._models.wakes.remove(self._wake)


class EpochModels:
    """The models of the epoch that answers. Lives on one event loop.

    Any thread may iterate, and call `find` and `some`.
    """

    def __init__(self, now: Callable[[], Mapping[str, Model]], supervisor: Channel) -> None:
        self._now = now
        self.supervisor = supervisor
        self.changed = asyncio.Event()
        self.wakes: list[Callable[[], None]] = []
        self._names: Collection[str] = ()
        self.trouble = ""
        """What is wrong with the server, apart from its models; empty if nothing is."""

    def __iter__(self) -> Iterator[Model]:
        return iter(self._now().values())

    def find(self, model: str) -> Model:
        """Return the model of this name. Raises UnknownModelError."""
        models = self._now()
        if model not in models:
            raise UnknownModelError(model, models)
        return models[model]

    def some(self, model: str) -> list[Model]:
        return [self.find(model)] if model else list(self)

    def batched(self, model: str) -> bool:
        known = self._now().get(model)
        return known is None or known.batched

    def followers(self, model: str = "") -> list[RemoteFollower]:
        """Return the followers of a model, or of all models. A joined model has the followers of its parts."""
        names: dict[str, None] = {}
        for served in self.some(model):
            settings = served.settings
            if isinstance(settings, ConnectionSettings):
                names |= dict.fromkeys((settings.first, settings.second))
            else:
                names[served.name] = None
        return [RemoteFollower(name, self) for name in names]

    def missing(self) -> dict[str, str]:
        """Return the models that were configured at the start and do not serve, with the reasons. Includes "workers" if
        `trouble` is set."""
        statuses = {model.name: model.status() for model in self if model.awaited}
        missing = {name: status.short_reason for name, status in statuses.items() if status.state is not State.SERVING}
        return {**missing, "workers": self.trouble} if self.trouble else missing

    def news(self) -> None:
        """Wake all subscriptions, and set `changed` if other models are served now.

        Call this on the event loop when another epoch answers or a status has changed.
        """
        for wake in list(self.wakes):
            wake()
        names = tuple(self._now())
        if names != self._names:
            self._names = names
            changed, self.changed = self.changed, asyncio.Event()
            changed.set()
