"""The quarantine of one follower: which versions are in it, why, since when, and with which files."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass

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
