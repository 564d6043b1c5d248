"""The one value that tells an operator how a model is doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from paramsync.sources.source import Progress
from paramsync.version import Version

_SHORT = 400  # characters of a reason, where others are told


class State(Enum):
    WAITING = "waiting"  # no version serves yet
    SERVING = "serving"
    DRAINING = "draining"


class Stage(Enum):
    """Where a version is on its way through this process."""

    FOUND = "found"  # it is published, and will be restored
    RESTORING = "restoring"
    RESIDENT = "resident"  # requests may name it
    LEAVING = "leaving"  # requests that hold it are still answered from it
    ENDED = "ended"  # it left, or it cannot be used and then has a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A version that cannot be used. `since` is in seconds since the epoch."""

    number: int
    reason: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One version's stage; `reason` says why it cannot be used, and is empty otherwise."""

    number: int
    stage: Stage
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """State and health are two things: a failed restore sets `last_error` and leaves `state` and `serving` alone."""

    model: str
    store: Path
    state: State = State.WAITING
    published: Version | None = None
    in_store: tuple[int, ...] = ()  # every published version
    serving: Version | None = None
    not_served: Mapping[str, str] = field(default_factory=dict)  # signatures left out of its graph, and why
    restoring: int | None = None
    restoring_progress: Progress | None = None
    parts: tuple[tuple[str, Version], ...] = ()  # of a joined model: what its answers come from
    resident: tuple[int, ...] = ()  # the serving one first
    labels: Mapping[str, int] = field(default_factory=dict)  # of resident versions
    leaving: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()  # the last few that left, the latest last
    quarantined: tuple[Quarantined, ...] = ()
    pinned: int | None = None
    last_error: str | None = None
    waiting_for: str | None = None  # why the store has no version, with its path
    swaps: int = 0
    restores: int = 0  # versions brought in since the start, as all counts
    quarantines: int = 0
    restore_seconds: float | None = None
    lag_seconds: float | None = None
    lag_steps: int | None = None
    lag_versions: int | None = None
    since_publication_seconds: float | None = None
    serving_age_seconds: float | None = None  # since the step that answers come from

    def at(self, now: float, known_for: float = 0.0, served_for: float = 0.0) -> Status:
        """This status with its lag and its ages at a time in seconds since the epoch.

        What is published has been known here for so many seconds, and what serves has served for so many, whatever
        clocks were set to since it was recorded.
        """
        published, serving = self.published, self.serving
        ages: dict[str, float | int | None] = {}
        if serving is not None:
            ages["serving_age_seconds"] = max(served_for, now - serving.step_done_at)
        if published is not None:
            age = _age(published, now, known_for)
            serves = serving is not None and serving.number == published.number
            ages["since_publication_seconds"] = age
            ages["lag_seconds"] = 0.0 if serves else age
            ages["lag_versions"] = sum(serving is None or one > serving.number for one in self.in_store)
            if serving is not None:
                ages["lag_steps"] = published.step - serving.step
        return replace(self, **ages)  # type: ignore[arg-type]

    @property
    def obstacle(self) -> str:
        """Why nothing serves, in short: the newest quarantine, else the trouble with the store; empty where nothing is
        known but that no version has come."""
        if self.serving is not None:
            return ""
        if not self.quarantined:
            return _short(self.last_error or (self.waiting_for or "").removeprefix(f"{self.store}: "))
        newest = self.quarantined[-1]
        return f"version {newest.number} is quarantined: {_short(newest.reason)}"

    @property
    def absence(self) -> str:
        """Why nothing serves, as callers are told."""
        why = f"no version from store {self.store} serves yet"
        return f"{why}: {self.obstacle}" if self.obstacle else why

    def quarantine_of(self, number: int) -> Quarantined | None:
        return next((one for one in self.quarantined if one.number == number), None)

    def courses(self) -> tuple[Course, ...]:
        """Every version there is something to say of, the highest number first.

        Where a version is several things at once, it is what serves requests best: one in memory is RESIDENT also while
        its rewritten files are restored, or cannot be.
        """
        found: dict[int, Course] = {}

        def put(number: int, stage: Stage, reason: str = "") -> None:
            found[number] = Course(number=number, stage=stage, reason=reason)

        for number in self.ended:
            put(number, Stage.ENDED)
        if self.published is not None and self.pinned in (None, self.published.number):
            put(self.published.number, Stage.FOUND)
        for one in self.quarantined:
            put(one.number, Stage.ENDED, one.reason)
        for number in self.leaving:
            put(number, Stage.LEAVING)
        if self.restoring is not None:
            put(self.restoring, Stage.RESTORING)
        for number in self.resident:
            put(number, Stage.LEAVING if self.state is State.DRAINING else Stage.RESIDENT)
        return tuple(found[number] for number in sorted(found, reverse=True))


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


def _age(version: Version, now: float, known_for: float) -> float | None:
    return None if version.committed_at is None else max(known_for, now - version.committed_at)
