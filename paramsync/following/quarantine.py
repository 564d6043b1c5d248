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
    """By version number. One thread owns it."""

    def __init__(self) -> None:
        self._cases: dict[int, _Case] = {}

    def add(self, number: int, reason: str, *, since: float, files: Hashable | None) -> bool:
        """Whether this is news. Without `files` the fault was not the version's own: it is tried at every look."""
        before = self._cases.get(number)
        again = before is not None and before.told.reason == reason
        told = before.told if before is not None and again else Quarantined(number=number, reason=reason, since=since)
        self._cases[number] = _Case(told, files)
        return not again

    def forget(self, number: int) -> None:
        self._cases.pop(number, None)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all others: they are not in the store any more."""
        self._cases = {number: one for number, one in self._cases.items() if number in numbers}

    def forget_rewritten(self, published: Iterable[Candidate[Version]]) -> None:
        """What has other files by now, and was not tried with them, is as good as any that was not."""
        files = {one.number: one.files for one in published}
        self._cases = {
            number: one
            for number, one in self._cases.items()
            if one.files is None or number not in files or files[number] == one.files
        }

    def files(self) -> dict[int, Hashable]:
        """The files each version had when it was quarantined for a fault of its own."""
        return {number: one.files for number, one in self._cases.items() if one.files is not None}

    def told(self) -> tuple[Quarantined, ...]:
        """What a status says of it, ascending by number."""
        return tuple(one.told for _, one in sorted(self._cases.items()))


LONGEST = 2.0  # seconds for which files may be missing, or go on being written, before that is a fault
_SOONEST = 0.05
_LATEST = 30.0  # between two tries of what this machine could not do


class UnfinishedVersions:
    """By version, for as long as its files are the same. One thread owns it."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[Hashable, float]] = {}

    def left(self, one: Candidate[Version], now: float) -> float | None:
        """In how many seconds to look again, each time twice as many; None where it has been waited for long enough."""
        files, since = self._since.get(one.number, (None, now))
        if files != one.files:
            since = now
        self._since[one.number] = (one.files, since)
        waited = now - since
        return None if waited >= LONGEST else max(_SOONEST, waited)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all others: they are not in the store any more."""
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
        """Seconds; none where it may be tried."""
        return max(0.0, self._until - now)


@dataclass(slots=True)
class _Trouble:
    files: Hashable
    reason: str = ""
    back_off: Backoff = field(default_factory=Backoff)


class MachineFailures:
    """Versions that this machine could not restore, which says nothing of them. One thread owns it."""

    def __init__(self) -> None:
        self._troubles: dict[int, _Trouble] = {}

    def add(self, one: Candidate[Version], reason: str, now: float) -> None:
        known = self._troubles.get(one.number)
        if known is None or known.files != one.files:
            known = self._troubles[one.number] = _Trouble(one.files)
        known.reason = reason
        known.back_off.failed(now)

    def left(self, one: Candidate[Version], now: float) -> float:
        """In how many seconds to try it again; none where it may be tried."""
        known = self._troubles.get(one.number)
        return 0.0 if known is None or known.files != one.files else known.back_off.left(now)

    def forget(self, number: int) -> None:
        self._troubles.pop(number, None)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all others: nobody wants them any more."""
        self._troubles = {number: one for number, one in self._troubles.items() if number in numbers}

    @property
    def reason(self) -> str | None:
        """Why the newest of them is not restored."""
        return self._troubles[max(self._troubles)].reason if self._troubles else None
