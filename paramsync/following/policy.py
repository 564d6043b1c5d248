"""Decides which version to restore, when to try a version again after a fault, and how far serving is behind.

| fault of a version (`faults.Fault`) | quarantined | tried again |
|---|---|---|
| unfinished | no | after 0.05 s, doubling, for 2 s; then treated as its own fault |
| its own: damaged, not a graph, not trusted | yes | when its files change, or a request names the version |
| not its own: the error may be gone at the next look | yes | at every look at the store |
| the machine's: memory, descriptors, permission | no | after 0.05 s, doubling up to 30 s |
| unforeseen | yes | as for its own fault; the log has the traceback |

Whatever the fault, the serving version goes on serving, and the next best version is tried in the same round. This
module is pure: it uses no clock, disk or thread, and only the standard library.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paramsync.status import Publication, Quarantined
from paramsync.version import Candidate, Version

MOST_WAITING = 4  # at most so many versions wait in memory for their moments; each takes as much as a model
MOST_BEFORE = 16  # how many formerly serving versions a rollback remembers


def next_restore(
    published: Sequence[Candidate],
    *,
    serving: Candidate | None,
    quarantined: Mapping[int, Hashable],
    pinned: int | None,
    waiting: Collection[int | None] = (),
    starts_over: bool = True,
) -> Candidate | None:
    """Return the version to restore now; None to stay with the serving version.

    `published` ascends and ends with the latest. `quarantined` maps the number of each quarantined version to the files
    that it had then. The version is skipped while it has these files.

    With a pin, only the pinned version is restored. But while nothing serves, other versions are tried after the pinned
    version: first older versions, then newer versions, each from the newest down.

    Without a pin, the newest version that is not quarantined is restored. An older version than the serving version is
    restored only if `starts_over` allows it and the latest version is older, too. A signed store does not allow it,
    because an attacker could replace new versions by old versions.

    `waiting` versions are skipped, because their moments are still to come. A pinned version does not wait.
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
        if candidate.number in waiting and candidate.number != pinned:
            continue
        if not is_quarantined(candidate, quarantined):
            return candidate
    return None


def upcoming(
    published: Sequence[Candidate],
    *,
    serving: Candidate | None,
    quarantined: Mapping[int, Hashable],
    coming: Mapping[int | None, float],
    pinned: int | None,
    pinned_next: int | None,
    starts_over: bool = True,
) -> list[Candidate]:
    """Return the versions to have in memory for the next moments, in the order in which they will serve.

    `coming` has the moments that are still to come, by version number. The key None is the moment at which an operator
    moves all followers to another version; from this moment on, `pinned_next` is pinned. For each moment, the result
    has the version that `next_restore` will return at this moment. A version is left out if a newer version serves at
    the same moment or before.
    """
    found: list[Candidate] = []
    for moment in sorted({*coming.values()}):
        waiting = [number for number, at in coming.items() if at > moment]
        candidate = next_restore(
            published,
            serving=serving,
            quarantined=quarantined,
            pinned=pinned if None in waiting else pinned_next,
            waiting=waiting,
            starts_over=starts_over,
        )
        if candidate is not None:
            found.append(candidate)
            serving = candidate
    return found[:MOST_WAITING]


def is_quarantined(candidate: Candidate, quarantined: Mapping[int, Hashable]) -> bool:
    """Return whether the version is quarantined and still has the files that it had then."""
    return candidate.number in quarantined and quarantined[candidate.number] == candidate.files


def stand_in(resident: Collection[int], *, pinned: int | None) -> int | None:
    """Return the version in memory that serves in place of a damaged version until the next restore.

    Returns the newest version. With a pin, versions above the pinned number are left out, because an operator may have
    rolled back from them.
    """
    return max((number for number in resident if pinned is None or number <= pinned), default=None)


def newest(published: Sequence[Candidate], *, quarantined: Mapping[int, Hashable], count: int) -> list[Candidate]:
    """Return the `count` newest versions that are not quarantined, the newest first."""
    good = [candidate for candidate in published if not is_quarantined(candidate, quarantined)]
    return good[::-1][:count]


def served_before(before: Sequence[int], *, left: int | None, now: int, back: bool) -> tuple[int, ...]:
    """Return the versions for the next rollbacks, each once, the most recent first.

    Version `now` has just replaced version `left`. After a rollback (`back`), the versions that came after `now` are
    left out, so that the next rollback goes further back.
    """
    if back:
        return tuple(before[before.index(now) + 1 :]) if now in before else ()
    earlier = before if left is None else (left, *before)
    return tuple(dict.fromkeys(number for number in earlier if number != now))[:MOST_BEFORE]


# When to try again ---------------------------------------------------------------------------------------------


UNFINISHED_SECONDS = 2.0  # how long files may be missing or growing before the version counts as damaged
_SOONEST = 0.05
_LATEST = 30.0  # seconds; the longest pause between two tries


class Backoff:
    """Exponential back-off, from 0.05 to 30 seconds."""

    def __init__(self) -> None:
        self._pause = _SOONEST
        self._until = 0.0

    def failed(self, now: float) -> None:
        self._until = now + self._pause
        self._pause = min(2 * self._pause, _LATEST)

    def left(self, now: float) -> float:
        """Return the seconds until the next try; 0 if it is due."""
        return max(0.0, self._until - now)


@dataclass(slots=True)
class _Failure:
    """The failures of one version with one state of its files."""

    files: Hashable
    quarantined: Quarantined | None = None
    own_fault: bool = True  # if False, the version is tried again at every look at the store
    incomplete_since: float | None = None
    machine: str = ""  # why this machine could not restore the version
    back_off: Backoff = field(default_factory=Backoff)


class Failures:
    """Versions that could not be restored. Once its files change, a version counts as new. Belongs to one thread."""

    def __init__(self) -> None:
        self._failures: dict[int, _Failure] = {}

    def quarantine(self, candidate: Candidate, reason: str, *, since: float, own_fault: bool) -> bool:
        """Quarantine a version. Returns whether the reason is new.

        Without `own_fault`, the version is tried again at every look at the store.
        """
        before = self._failures.get(candidate.number)
        known = None if before is None else before.quarantined  # the same reason is not new, even if the files changed
        failure = self._of(candidate)
        news = known is None or known.reason != reason
        failure.quarantined = Quarantined(number=candidate.number, reason=reason, since=since) if news else known
        failure.own_fault = own_fault
        return news

    def incomplete(self, candidate: Candidate, now: float) -> float | None:
        """Return the seconds until the next look at an unfinished version; None after UNFINISHED_SECONDS."""
        failure = self._of(candidate)
        if failure.incomplete_since is None:
            failure.incomplete_since = now
        waited = now - failure.incomplete_since
        return None if waited >= UNFINISHED_SECONDS else max(_SOONEST, waited)

    def postpone(self, candidate: Candidate, reason: str, now: float) -> float:
        """Note that this machine could not restore the version. Returns the seconds until the next try."""
        failure = self._of(candidate)
        failure.machine = reason
        failure.back_off.failed(now)
        return failure.back_off.left(now)

    def left(self, candidate: Candidate, now: float) -> float:
        """Return the seconds until a postponed version may be tried again; 0 if it may be tried now."""
        failure = self._failures.get(candidate.number)
        return 0.0 if failure is None or failure.files != candidate.files else failure.back_off.left(now)

    def pardon(self, number: int) -> None:
        """Let the version be tried once more, without delay."""
        if number in self._failures:
            self._failures[number].quarantined = None
            self._no_more_postponed(self._failures[number])

    def forget(self, number: int) -> None:
        self._failures.pop(number, None)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all versions except these, the versions in the store."""
        self._failures = {number: failure for number, failure in self._failures.items() if number in numbers}

    def settle(self, published: Iterable[Candidate], wanted: Collection[int]) -> None:
        """Lift quarantines of versions that failed by their own fault and whose files have changed since.

        Stop postponing versions that are not `wanted`.
        """
        files = {candidate.number: candidate.files for candidate in published}
        for number, failure in self._failures.items():
            if failure.own_fault and files.get(number, failure.files) != failure.files:
                failure.quarantined = None
            if number not in wanted:
                self._no_more_postponed(failure)

    def files(self) -> dict[int, Hashable]:
        """Return the files that each version had when it was quarantined for its own fault."""
        cases = self._failures.items()
        return {number: case.files for number, case in cases if case.quarantined is not None and case.own_fault}

    def quarantined(self) -> tuple[Quarantined, ...]:
        """Return the quarantined versions, ascending."""
        cases = (failure.quarantined for _, failure in sorted(self._failures.items()))
        return tuple(case for case in cases if case is not None)

    @property
    def reason(self) -> str:
        """Why this machine cannot restore a version, of several the highest; empty if there is none."""
        reasons = {number: failure.machine for number, failure in self._failures.items() if failure.machine}
        return reasons[max(reasons)] if reasons else ""

    def _of(self, candidate: Candidate) -> _Failure:
        failure = self._failures.get(candidate.number)
        if failure is None or failure.files != candidate.files:
            failure = self._failures[candidate.number] = _Failure(candidate.files)
        return failure

    def _no_more_postponed(self, failure: _Failure) -> None:
        failure.machine = ""
        failure.back_off = Backoff()


# How far the serving version is behind --------------------------------------------------------------------------------


class Publications:
    """The publications of one store. Belongs to one thread.

    Remembers the publications of all versions that are in the store or in memory. The lag of a version begins with the
    publication of its successor, so the successor's publication is remembered as long as the version is in memory.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Publication] = {}
        self._latest: Publication | None = None

    def update(self, published: Sequence[Version], in_memory: Collection[int], now: float) -> None:
        """Note the published versions, ascending up to the latest. `in_memory` includes the serving version."""
        if not published:
            return
        highest = published[-1].number
        seen = {number: seen for number, seen in self._seen.items() if number <= highest or number in in_memory}
        count = max((known.count for number, known in seen.items() if number <= highest), default=0)
        for version in published:
            known = seen.get(version.number)
            if known is None or known.committed_at != version.committed_at:  # the version was published again
                count = max(count + 1, version.publications)
                seen[version.number] = Publication(version.number, count, version.committed_at, now)
        kept = {version.number for version in published}
        for before in in_memory or (-1,):
            kept |= {before, min((number for number in seen if number > before), default=before)}
        self._seen = {number: known for number, known in seen.items() if number in kept}
        self._latest = seen[highest]

    def newer(self, serving: int | None) -> tuple[Publication | None, int]:
        """Return the oldest publication newer than the serving version, and the number of newer publications.

        If the serving version's number is above the latest, the store started over with lower numbers. All publications
        then count as newer.
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
