"""Which version to restore, which served before, and which are not to be tried now: in quarantine, not complete yet, or
beyond what this machine could do. Pure: no clock, disk or thread; the standard library only."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paramsync.version import Candidate, V

MOST_BEFORE = 16  # versions that served before which a rollback knows of


def next_restore(
    published: Sequence[Candidate[V]],
    *,
    serving: Candidate[V] | None,
    quarantined: Mapping[int, Hashable],
    pinned: int | None,
) -> Candidate[V] | None:
    """The version to restore now; None to stay with what serves.

    `published` ascends and ends with the latest. `quarantined` maps the number of each version that could not be used
    to the files it had then: it is passed over for as long as it has them. Pinned, only that version counts, but that
    any is better than none while nothing serves. Otherwise it is the newest that is not quarantined, and never one
    older than what serves, unless the store itself started over with lower numbers.
    """
    if pinned is not None:
        wanted = [candidate for candidate in published if serving is None and candidate.number != pinned]
        wanted += [candidate for candidate in published if candidate.number == pinned]
    elif serving is None or (published and published[-1].number < serving.number):
        wanted = list(published)
    else:
        wanted = [candidate for candidate in published if candidate.number >= serving.number]
    for candidate in reversed(wanted):
        if candidate.same_as(serving):
            return None
        if candidate.number not in quarantined or quarantined[candidate.number] != candidate.files:
            return candidate
    return None


def newest(published: Sequence[Candidate[V]], *, quarantined: Mapping[int, Hashable], count: int) -> list[Candidate[V]]:
    """So many of the newest that can be used, the newest first: those to have in memory beside each other."""
    by_number = {candidate.number: candidate for candidate in published}
    bad = [number for number, files in quarantined.items() if number in by_number and by_number[number].files == files]
    return [by_number[number] for number in usable(by_number, bad)[:count]]


def usable(published: Collection[int], quarantined: Collection[int]) -> list[int]:
    """The newest first."""
    return sorted({*published} - {*quarantined}, reverse=True)


def served_before(before: Sequence[int], *, left: int | None, now: int, back: bool) -> tuple[int, ...]:
    """The versions that served before `now`, each once, the last one first, after `left` was swapped for it.

    `back` says that a rollback did so: what it went back from, or past, is not gone back to.
    """
    if back:
        return tuple(before[before.index(now) + 1 :]) if now in before else ()
    earlier = before if left is None else (left, *before)
    return tuple(dict.fromkeys(number for number in earlier if number != now))[:MOST_BEFORE]


# What is not to be tried now ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A version that cannot be used. `since` is in seconds since the epoch."""

    number: int
    reason: str
    since: float


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
        self._cases = {number: case for number, case in self._cases.items() if number in numbers}

    def forget_rewritten(self, published: Iterable[Candidate[V]]) -> None:
        """Forget versions with other files by now, which have not been tried."""
        files = {candidate.number: candidate.files for candidate in published}
        self._cases = {
            number: case
            for number, case in self._cases.items()
            if case.files is None or number not in files or files[number] == case.files
        }

    def files(self) -> dict[int, Hashable]:
        """The files that each version had when it was quarantined for a fault of its own."""
        return {number: case.files for number, case in self._cases.items() if case.files is not None}

    def told(self) -> tuple[Quarantined, ...]:
        """All of it for a status, ascending by number."""
        return tuple(case.told for _, case in sorted(self._cases.items()))


UNFINISHED_SECONDS = 2.0  # for which files may be missing, or go on being written, before that is a fault
_SOONEST = 0.05
_LATEST = 30.0  # between two tries of what this machine could not do


class UnfinishedVersions:
    """How long versions may stay incomplete, each for as long as its files are the same. One thread owns it."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[Hashable, float]] = {}

    def left(self, candidate: Candidate[V], now: float) -> float | None:
        """Seconds until the next look, doubled each time; None where the wait was long enough."""
        files, since = self._since.get(candidate.number, (None, now))
        if files != candidate.files:
            since = now
        self._since[candidate.number] = (candidate.files, since)
        waited = now - since
        return None if waited >= UNFINISHED_SECONDS else max(_SOONEST, waited)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all others, which are not in the store any more."""
        self._since = {number: since for number, since in self._since.items() if number in numbers}


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

    def add(self, candidate: Candidate[V], reason: str, now: float) -> None:
        known = self._failures.get(candidate.number)
        if known is None or known.files != candidate.files:
            known = self._failures[candidate.number] = _Failure(candidate.files)
        known.reason = reason
        known.back_off.failed(now)

    def left(self, candidate: Candidate[V], now: float) -> float:
        """Seconds until the next try; 0 where it may be tried now."""
        known = self._failures.get(candidate.number)
        return 0.0 if known is None or known.files != candidate.files else known.back_off.left(now)

    def forget(self, number: int) -> None:
        self._failures.pop(number, None)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all others, which nobody wants any more."""
        self._failures = {number: failure for number, failure in self._failures.items() if number in numbers}

    @property
    def reason(self) -> str | None:
        """Why the newest is not restored."""
        return self._failures[max(self._failures)].reason if self._failures else None
