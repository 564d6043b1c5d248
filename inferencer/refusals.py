"""The quarantine of one follower: which versions were refused, why, since when, and with which files."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from inferencer.status import Quarantine


@dataclass(frozen=True)
class _Refusal:
    quarantine: Quarantine
    files: Hashable | None


class Refusals:
    """By version number. One thread owns it."""

    def __init__(self) -> None:
        self._refusals: dict[int, _Refusal] = {}

    def add(self, number: int, reason: str, *, since: float, files: Hashable | None) -> bool:
        """Whether this is news. Without `files` the fault was not the version's own: it is tried at every look."""
        before = self._refusals.get(number)
        again = before is not None and before.quarantine.reason == reason
        quarantine = (
            before.quarantine if before is not None and again else Quarantine(number=number, reason=reason, since=since)
        )
        self._refusals[number] = _Refusal(quarantine, files)
        return not again

    def forget(self, number: int) -> None:
        self._refusals.pop(number, None)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all others: they are not in the store any more."""
        self._refusals = {number: one for number, one in self._refusals.items() if number in numbers}

    def files(self) -> dict[int, Hashable]:
        """The files each version had when it was refused for a fault of its own."""
        return {number: one.files for number, one in self._refusals.items() if one.files is not None}

    def quarantined(self) -> tuple[Quarantine, ...]:
        """Ascending by number."""
        return tuple(one.quarantine for _, one in sorted(self._refusals.items()))
