"""Which version to restore, which served before, and which are not to be tried now: in quarantine, not complete yet, or
beyond what this machine could do; how far the serving version is behind what was published. Pure: no clock, disk or
thread; the standard library only."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paramsync.status import Publication, Quarantined, usable
from paramsync.version import Candidate, V, Version

MOST_BEFORE = 16  # versions that served before which a rollback knows of


def next_restore(
    published: Sequence[Candidate[V]],
    *,
    serving: Candidate[V] | None,
    quarantined: Mapping[int, Hashable],
    pinned: int | None,
    starts_over: bool = True,
) -> Candidate[V] | None:
    """The version to restore now; None to stay with what serves.

    `published` ascends and ends with the latest. `quarantined` maps the number of each version that could not be used
    to the files it had then: it is passed over for as long as it has them. Pinned, only that version counts, but that
    any is better than none while nothing serves, the newest older one first. Otherwise it is the newest that is not
    quarantined, and never one older than what serves, unless the store itself started over with lower numbers, and may:
    where versions are signed, old ones might be put in the place of newer ones.
    """
    if pinned is not None:
        others = [candidate for candidate in published if serving is None and candidate.number != pinned]
        wanted = sorted(others, key=lambda candidate: (candidate.number < pinned, candidate.number))
        wanted += [candidate for candidate in published if candidate.number == pinned]
    elif serving is None or (starts_over and published and published[-1].number < serving.number):
        wanted = list(published)
    else:
        wanted = [candidate for candidate in published if candidate.number >= serving.number]
    for candidate in reversed(wanted):
        if candidate.same_as(serving):
            return None
        if candidate.number not in quarantined or quarantined[candidate.number] != candidate.files:
            return candidate
    return None


def stand_in(resident: Collection[int], *, pinned: int | None) -> int | None:
    """The version in memory that takes the place of a damaged one at once; the store may have a better one.

    It is the newest. Pinned, it is none newer than the pin, for an operator may have gone back from that one.
    """
    return max((number for number in resident if pinned is None or number <= pinned), default=None)


def newest(published: Sequence[Candidate[V]], *, quarantined: Mapping[int, Hashable], count: int) -> list[Candidate[V]]:
    """So many of the newest that can be used, the newest first: those to have in memory beside each other."""
    by_number = {candidate.number: candidate for candidate in published}
    bad = [number for number, files in quarantined.items() if number in by_number and by_number[number].files == files]
    return [by_number[number] for number in usable(by_number, bad)[:count]]


def served_before(before: Sequence[int], *, left: int | None, now: int, back: bool) -> tuple[int, ...]:
    """The versions that served before `now`, each once, the last one first, after `left` was swapped for it.

    `back` says that a rollback did so: what it went back from, or past, is not gone back to.
    """
    if back:
        return tuple(before[before.index(now) + 1 :]) if now in before else ()
    earlier = before if left is None else (left, *before)
    return tuple(dict.fromkeys(number for number in earlier if number != now))[:MOST_BEFORE]


# What is not to be tried now ------------------------------------------------------------------------------------------


UNFINISHED_SECONDS = 2.0  # for which files may be missing, or go on being written, before that is a fault
_SOONEST = 0.05
_LATEST = 30.0  # between two tries of what this machine could not do


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
    """What became of one version as long as its files were these."""

    files: Hashable
    quarantined: Quarantined | None = None
    own_fault: bool = True  # else it is tried at every look
    incomplete_since: float | None = None
    machine: str = ""  # why this machine could not restore it, where that is so
    back_off: Backoff = field(default_factory=Backoff)


class Failures:
    """Versions that could not be restored: in quarantine, not complete yet, or too much for this machine.

    Other files of a version are another case. One thread owns it.
    """

    def __init__(self) -> None:
        self._failures: dict[int, _Failure] = {}

    def quarantine(self, candidate: Candidate[V], reason: str, *, since: float, own_fault: bool) -> bool:
        """Whether this is news. Where the fault is not the version's own, it is tried at every look."""
        before = self._failures.get(candidate.number)
        known = None if before is None else before.quarantined  # for the same reason it is no news with other files
        failure = self._of(candidate)
        news = known is None or known.reason != reason
        failure.quarantined = Quarantined(number=candidate.number, reason=reason, since=since) if news else known
        failure.own_fault = own_fault
        return news

    def incomplete(self, candidate: Candidate[V], now: float) -> float | None:
        """Seconds until the next look, doubled each time; None where the wait was long enough."""
        failure = self._of(candidate)
        if failure.incomplete_since is None:
            failure.incomplete_since = now
        waited = now - failure.incomplete_since
        return None if waited >= UNFINISHED_SECONDS else max(_SOONEST, waited)

    def postpone(self, candidate: Candidate[V], reason: str, now: float) -> float:
        """Seconds until the next try of what this machine could not do, for no fault of the version."""
        failure = self._of(candidate)
        failure.machine = reason
        failure.back_off.failed(now)
        return failure.back_off.left(now)

    def left(self, candidate: Candidate[V], now: float) -> float:
        """Seconds until that; 0 where it may be tried now."""
        failure = self._failures.get(candidate.number)
        return 0.0 if failure is None or failure.files != candidate.files else failure.back_off.left(now)

    def pardon(self, number: int) -> None:
        """Have it tried once more, now."""
        if number in self._failures:
            self._failures[number].quarantined = None
            self._no_more_postponed(self._failures[number])

    def forget(self, number: int) -> None:
        self._failures.pop(number, None)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all others, which are not in the store any more."""
        self._failures = {number: failure for number, failure in self._failures.items() if number in numbers}

    def settle(self, published: Iterable[Candidate[V]], wanted: Collection[int]) -> None:
        """Forget versions with other files by now, which have not been tried; postpone only those that are wanted."""
        files = {candidate.number: candidate.files for candidate in published}
        for number, failure in self._failures.items():
            if failure.own_fault and files.get(number, failure.files) != failure.files:
                failure.quarantined = None
            if number not in wanted:
                self._no_more_postponed(failure)

    def files(self) -> dict[int, Hashable]:
        """The files that each version had when it was quarantined for a fault of its own."""
        cases = self._failures.items()
        return {number: case.files for number, case in cases if case.quarantined is not None and case.own_fault}

    def quarantined(self) -> tuple[Quarantined, ...]:
        """All of it for a status, ascending by number."""
        cases = (failure.quarantined for _, failure in sorted(self._failures.items()))
        return tuple(case for case in cases if case is not None)

    @property
    def reason(self) -> str:
        """Why this machine cannot restore the newest version; empty if it can."""
        reasons = {number: failure.machine for number, failure in self._failures.items() if failure.machine}
        return reasons[max(reasons)] if reasons else ""

    def _of(self, candidate: Candidate[V]) -> _Failure:
        failure = self._failures.get(candidate.number)
        if failure is None or failure.files != candidate.files:
            failure = self._failures[candidate.number] = _Failure(candidate.files)
        return failure

    def _no_more_postponed(self, failure: _Failure) -> None:
        failure.machine = ""
        failure.back_off = Backoff()


# How far the serving version is behind --------------------------------------------------------------------------------


class Publications:
    """The publications of one store. One thread owns it.

    Remembers the versions in the store and in memory, and the first one after each version in memory: a lag counts from
    there, even long after the store dropped it.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Publication] = {}
        self._latest: Publication | None = None

    def found(self, published: Sequence[Version], in_memory: Collection[int], now: float) -> None:
        """The versions that are in the store now, ascending up to the latest. `in_memory` includes the serving one."""
        if not published:
            return
        highest = published[-1].number
        seen = {number: one for number, one in self._seen.items() if number <= highest or number in in_memory}
        count = max((one.count for number, one in seen.items() if number <= highest), default=0)
        for version in published:
            known = seen.get(version.number)
            if known is None or known.committed_at != version.committed_at:  # it was published anew
                count = max(count + 1, version.publications)
                seen[version.number] = Publication(version.number, count, version.committed_at, now)
        kept = {version.number for version in published}
        for before in in_memory or (-1,):
            kept |= {before, min((number for number in seen if number > before), default=before)}
        self._seen = {number: one for number, one in seen.items() if number in kept}
        self._latest = seen[highest]

    def newer(self, serving: int | None) -> tuple[Publication | None, int]:
        """The oldest publication newer than the serving version, and how many there were.

        All are newer than a version from before the store started over with lower numbers.
        """
        latest = self._latest
        if latest is None:
            return None, 0
        after = serving if serving is not None and serving <= latest.number else -1
        numbers = [number for number in self._seen if after < number <= latest.number]
        if not numbers:
            return None, 0
        oldest = self._seen[min(numbers)]
        own = self._seen.get(after)
        return oldest, max(len(numbers), latest.count - (oldest.count - 1 if own is None else own.count))
