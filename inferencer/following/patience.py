"""Patience with versions whose files are not all there yet: how soon to look at them again. Pure: the time comes in."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from inferencer.policy import Candidate
from paramsync.version import Version

LONGEST = 2.0  # seconds for which files may be missing, or go on being written, before that is a fault
_SOONEST = 0.05


class Patience:
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
