"""The one value that tells an operator how a model is doing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from paramsync.version import Version


class State(Enum):
    WAITING = "waiting"  # no version serves yet
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A version that cannot be used. `since` is in seconds since the epoch."""

    number: int
    reason: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """State and health are two things: a failed restore sets `last_error` and leaves `state` and `serving` alone."""

    model: str
    store: Path
    state: State = State.WAITING
    published: Version | None = None
    serving: Version | None = None
    restoring: int | None = None
    resident: tuple[int, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    pinned: int | None = None
    last_error: str | None = None
    swaps: int = 0
    restore_seconds: float | None = None
    lag_seconds: float | None = None
    lag_steps: int | None = None

    def at(self, now: float) -> Status:
        """This status with its lag at a time in seconds since the epoch."""
        if self.published is None:
            return self
        if self.serving is None:
            return replace(self, lag_seconds=_age(self.published, now))
        seconds = 0.0 if self.serving.number == self.published.number else _age(self.published, now)
        return replace(self, lag_seconds=seconds, lag_steps=self.published.step - self.serving.step)

    def quarantine_of(self, number: int) -> Quarantined | None:
        return next((one for one in self.quarantined if one.number == number), None)


def _age(version: Version, now: float) -> float | None:
    return None if version.committed_at is None else max(0.0, now - version.committed_at)
