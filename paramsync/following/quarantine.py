"""Which versions are not to be tried now: in quarantine, not complete yet, or beyond what this machine could do."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field

from paramsync.following.status import Quarantined
from paramsync.version import Candidate, Version


@dataclass(frozen=True)
class _Case:
    told: Quarantined
    files: Hashable | None


class Quarantine:
    """Versions that cannot be used: why, since when, and with which files. One thread owns it."""

    def __init__(self) -> None:
        self._cases: dict[int, _Case] = {}

    def add(self, number: int, reason: str, *, since: float, files: Hashable | None) -> bool:
        """Whether this is news. Without `files` the fault is not the version's own: it is tried at every look."""
        before = self._cases.get(number)
        again = before is not None and before.told.reason == reason
        told = before.told if before is not None and again else Quarantined(number=number, reason=reason, since=since)
        self._cases[number] = _Case(told, files)
        return not again

    def forget(self, number: int) -> None:
        self._cases.pop(number, None)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all others, which are not in the store any more."""
        self._cases = {number: one for number, one in self._cases.items() if number in numbers}

    def forget_rewritten(self, published: Iterable[Candidate[Version]]) -> None:
        """Forget versions with other files by now, which have not been tried."""
        files = {one.number: one.files for one in published}
        self._cases = {
            number: one
            for number, one in self._cases.items()
            if one.files is None or number not in files or files[number] == one.files
        }

    def files(self) -> dict[int, Hashable]:
        """The files that each version had when it was quarantined for a fault of its own."""
        return {number: one.files for number, one in self._cases.items() if one.files is not None}

    def told(self) -> tuple[Quarantined, ...]:
        """All of it for a status, ascending by number."""
        return tuple(one.told for _, one in sorted(self._cases.items()))


UNFINISHED_SECONDS = 2.0  # for which files may be missing, or go on being written, before that is a fault
_SOONEST = 0.05
_LATEST = 30.0  # between two tries of what this machine could not do


class UnfinishedVersions:
    """How long versions may stay incomplete, each for as long as its files are the same. One thread owns it."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[Hashable, float]] = {}

    def left(self, one: Candidate[Version], now: float) -> float | None:
        """Seconds until the next look, doubled each time; None where the wait was long enough."""
        files, since = self._since.get(one.number, (None, now))
        if files != one.files:
            since = now
        self._since[one.number] = (one.files, since)
        waited = now - since
        return None if waited >= UNFINISHED_SECONDS else max(_SOONEST, waited)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all others, which are not in the store any more."""
        self._since = {number: one for number, one in self._since.items() if number in numbers}


class Backoff:
    """When to try again: soon at first, then each time after twice as long."""

    def __init__(self) -> None:
        self._pause = _SOONEST
        self._until = 0.0

    def failed(self, now: float) -> None:
        self._until = now + self._pause
        self._pause = min(2 * self._pause, _LATEST)

    def left(self, now: float) -> float:
        """Seconds until the next try; 0 where it may be tried now."""
        return max(0.0, self._until - now)


@dataclass(slots=True)
class _Failure:
    files: Hashable
    reason: str = ""
    back_off: Backoff = field(default_factory=Backoff)


class MachineFailures:
    """Versions that this machine could not restore, for no fault of theirs: tried again later. One thread owns it."""

    def __init__(self) -> None:
        self._failures: dict[int, _Failure] = {}

    def add(self, one: Candidate[Version], reason: str, now: float) -> None:
        known = self._failures.get(one.number)
        if known is None or known.files != one.files:
            known = self._failures[one.number] = _Failure(one.files)
        known.reason = reason
        known.back_off.failed(now)

    def left(self, one: Candidate[Version], now: float) -> float:
        """Seconds until the next try; 0 where it may be tried now."""
        known = self._failures.get(one.number)
        return 0.0 if known is None or known.files != one.files else known.back_off.left(now)

    def forget(self, number: int) -> None:
        self._failures.pop(number, None)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all others, which nobody wants any more."""
        self._failures = {number: one for number, one in self._failures.items() if number in numbers}

    @property
    def reason(self) -> str | None:
        """Why the newest is not restored."""
        return self._failures[max(self._failures)].reason if self._failures else None
