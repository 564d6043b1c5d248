"""The status of a model, and the events of its versions, as values for threads, processes and messages.

Followers make these values; programs that serve read them. Uses only the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paramsync.version import Version

if TYPE_CHECKING:
    from paramsync.remote.bucket_status import BucketStatus
    from paramsync.sources.source import Progress
    from paramsync.store.store import LastPublisher


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A version that cannot be used. `since` is in seconds since the epoch."""

    number: int
    reason: str
    since: float

    @property
    def short(self) -> str:
        """The beginning of the reason."""
        return short(self.reason)


_SHORT = 400  # characters


def short(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


@dataclass(frozen=True, slots=True)
class Publication:
    """A version that was published. `found_at` is the time on the monotonic clock when this process found it."""

    number: int
    count: int
    """The number of versions published so far, including this version."""
    committed_at: float | None
    found_at: float


class Back(NamedTuple):
    """The version to which a rollback goes. If it never `served`, it is the next lower version that can be used."""

    number: int
    served: bool


class State(Enum):
    WAITING = "waiting"  # no version serves yet
    SERVING = "serving"
    DAMAGED = "damaged"  # the serving version is damaged, and no other version can replace it
    DRAINING = "draining"


class Stage(Enum):
    """The stage that a version has reached in this process."""

    FOUND = "found"  # the version is published, and will be restored
    RESTORING = "restoring"
    RESIDENT = "resident"  # requests may name the version
    LEAVING = "leaving"  # only requests that already use the version are answered from it
    ENDED = "ended"  # the version left memory, or it cannot be used; if it cannot be used, it has a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The stage of one version. `reason` says why the version cannot be used; it is empty for other versions."""

    number: int
    stage: Stage
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of one model.

    State and health are separate: a failed restore sets `reason`, but does not change `state` and `serving`.
    """

    model: str
    store: Path
    state: State = State.WAITING
    published: Version | None = None
    in_store: tuple[int, ...] = ()  # all published versions
    serving: Version | None = None
    before: tuple[int, ...] = ()  # versions that served before, the latest first
    signed_by: str = ""  # the trusted key that signed the serving version; empty if versions need no signature
    not_served: Mapping[str, str] = field(default_factory=dict)  # why each signature that the graph lacks is not served
    restoring: int | None = None
    restoring_progress: Progress | None = None
    next: int | None = None  # a version in memory that waits for its moment
    next_at: float | None = None  # when this version comes to serve, in seconds since the epoch
    parts: tuple[tuple[str, Version], ...] = ()  # the versions of the parts of a joined model; empty for other models
    resident: tuple[int, ...] = ()  # versions in memory, the serving version first
    labels: Mapping[str, int] = field(default_factory=dict)  # by label: the version in memory that has the label
    leaving: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()  # the last few versions that left memory, in the order in which they left
    quarantined: tuple[Quarantined, ...] = ()
    pinned: int | None = None
    publisher: LastPublisher | None = None  # None if the store does not record its publisher
    reason: str = ""  # why the store has no version, or why the newest version is not restored; empty if all is well
    store_lost: bool = False  # the store cannot be read, or is empty although a version from it serves
    swaps: int = 0  # this and the next two are counts since the process started
    restores: int = 0
    quarantines: int = 0
    restore_seconds: float | None = None
    swap_skew_seconds: float | None = None  # how long after its moment the serving version came to serve
    lag_seconds: float | None = None
    lag_steps: int | None = None
    lag_versions: int | None = None  # how many versions were published after the serving version
    since_publication_seconds: float | None = None
    serving_age_seconds: float | None = None  # time since the training step of the serving version
    found_at: float = math.inf  # time on the monotonic clock when the newest version was found
    served_at: float = math.inf  # time on the monotonic clock when the serving version began to serve
    overdue: Publication | None = None  # the oldest publication newer than the serving version
    bucket: BucketStatus | None = None  # set if the store is a local copy of a bucket

    def ageless(self) -> Status:
        """Return this status without lag and ages, which change even if nothing happens."""
        bucket = None if self.bucket is None else self.bucket.ageless()
        return replace(self, lag_seconds=None, since_publication_seconds=None, serving_age_seconds=None, bucket=bucket)

    def at(self, now: float, monotonic: float) -> Status:
        """Return this status with lag and ages at a moment: `now` since the epoch, `monotonic` on the monotonic clock.

        An age is at least the time that has passed on the monotonic clock, even if the other clock was set back.
        """
        published, serving = self.published, self.serving
        ages: dict[str, Any] = {}
        if serving is not None and self.bucket is not None and (copied := self.bucket.copied) is not None:
            # A version may serve before its mirror has read the clock for `here_at`.
            since = max(copied.here_at, now - (monotonic - self.served_at))
            is_known = copied.number == serving.number and math.isfinite(self.served_at)
            copied = replace(copied, served_at=since if is_known else None)
            ages["bucket"] = replace(self.bucket, copied=copied)
        if serving is not None:
            ages["serving_age_seconds"] = max(0.0, monotonic - self.served_at, now - serving.step_done_at)
        if published is not None:
            age = _age(published.committed_at, now, monotonic - self.found_at)
            ages["since_publication_seconds"] = age
            if serving is None:  # the lag begins when this process found the overdue version
                ages["lag_seconds"] = None if self.overdue is None else monotonic - self.overdue.found_at
            else:
                serves = serving.number == published.number
                ages["lag_seconds"] = 0.0 if serves else self._lag(now, monotonic, since_published=age)
                ages["lag_versions"] = 0 if serves else self.lag_versions
                ages["lag_steps"] = published.step - serving.step
        return replace(self, **ages)

    def _lag(self, now: float, monotonic: float, *, since_published: float | None) -> float | None:
        if self.overdue is None:
            return since_published
        return _age(self.overdue.committed_at, now, monotonic - self.overdue.found_at)

    @property
    def short_reason(self) -> str:
        """Why no sound version serves, in one sentence. Empty if a sound version serves, or if no reason is known.

        If the serving version is quarantined, this is the reason of its quarantine. Otherwise it is the reason of the
        newest quarantined version or, if no version is quarantined, `reason`.
        """
        if self.serving is not None and self.state is not State.DAMAGED:
            return ""
        of_serving = None if self.serving is None else self.quarantine_of(self.serving.number)
        case = of_serving or (self.quarantined[-1] if self.quarantined else None)
        if case is None:
            return short(self.reason.removeprefix(f"{self.store}: "))
        return f"version {case.number} is quarantined: {case.short}"

    @property
    def back(self) -> Back | None:
        """The version to which a rollback would go now; None if there is none."""
        if self.parts:
            return None
        return self.back_among(self.in_store)

    def back_among(self, published: Collection[int] | None) -> Back | None:
        """Return the version to which a rollback goes: the last version that served before and can be used.

        If no such version is left, for example after a restart, it is the usable version with the next lower number.
        Returns None if there is no such version either, or `published` is None because the store cannot be read.
        """
        usable = self.usable({*self.resident, *(published or ())})
        for number in self.before:
            if number in usable or number in self.resident:
                return Back(number, served=True)
        if published is None or self.serving is None:
            return None
        lower = [number for number in usable if number < self.serving.number]
        return Back(lower[0], served=False) if lower else None

    def usable(self, numbers: Collection[int]) -> list[int]:
        """Return these versions without quarantined versions, the newest first."""
        return sorted({*numbers}.difference(case.number for case in self.quarantined), reverse=True)

    @property
    def newest_quarantined(self) -> bool:
        return self.published is not None and self.quarantine_of(self.published.number) is not None

    def quarantine_of(self, number: int) -> Quarantined | None:
        return next((case for case in self.quarantined if case.number == number), None)

    def courses(self) -> tuple[Course, ...]:
        """Return the stage of each known version, the highest number first.

        A version in memory stays RESIDENT while its rewritten files are restored, even if that fails.
        """
        courses: dict[int, Course] = {}

        def put(number: int, stage: Stage, reason: str = "") -> None:
            courses[number] = Course(number=number, stage=stage, reason=reason)

        for number in self.ended:
            put(number, Stage.ENDED)
        if self.published is not None and self.pinned in (None, self.published.number):
            put(self.published.number, Stage.FOUND)
        for case in self.quarantined:
            put(case.number, Stage.ENDED, case.reason)
        for number in self.leaving:
            put(number, Stage.LEAVING)
        if self.restoring is not None:
            put(self.restoring, Stage.RESTORING)
        for number in self.resident:
            put(number, Stage.LEAVING if self.state is State.DRAINING else Stage.RESIDENT)
        return tuple(courses[number] for number in sorted(courses, reverse=True))


def waits_until(number: int, moment: float | None) -> str:
    """Return a text that says until when a version waits."""
    at = datetime.fromtimestamp(moment or 0.0, timezone.utc)
    return f"version {number} waits for its moment, {at:%H:%M:%S} UTC"


def nothing_serves(store: Path, short_reason: str) -> str:
    """Return the error text for callers of a model that does not serve."""
    text = f"no version from store {store} serves yet"
    return f"{text}: {short_reason}" if short_reason else text


def _age(committed_at: float | None, now: float, known_for: float) -> float | None:
    return None if committed_at is None else max(0.0, known_for, now - committed_at)


class EventKind(Enum):
    FOUND = "found"  # the store has a new latest version
    RESTORING = "restoring"  # the restore of a version began; repeated, with progress, during a long restore
    RESTORED = "restored"  # the version is checked and in memory
    SWAPPED = "swapped"  # the version serves
    QUARANTINED = "quarantined"  # the version cannot be used; `reason` says why


EVERY_KIND = frozenset(EventKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a version. `at` is in seconds since the epoch."""

    kind: EventKind
    model: str
    version: Version
    at: float
    reason: str = ""
    restore_seconds: float = 0.0
    progress: Progress | None = None
