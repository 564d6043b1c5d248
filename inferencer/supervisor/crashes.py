"""Why workers crash: by a version that they were computing, or again and again by something else. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

CRASHES = 3  # of workers that computed the same version, after which it is held to be the cause
_TIED = 2 * CRASHES  # after which each is that was computed in all of them
_WITHIN_SECONDS = 60.0
QUICK_SECONDS = 10.0  # in which the end of a worker is a part of a loop
LOOP = 3  # such ends in a row


class Crashes:
    """Which versions workers crash on. One thread at a time."""

    def __init__(self) -> None:
        self._crashes: list[tuple[float, frozenset[int]]] = []

    def add(self, keys: Collection[int], now: float) -> list[int]:
        """A worker crashed while it computed versions of these keys. Returns those that are held to be the cause.

        Of several that were computed at the same time each is suspect: it is the one that was in more crashes.
        """
        recent = [crash for crash in self._crashes if crash[0] > now - _WITHIN_SECONDS]
        self._crashes = [*recent, (now, frozenset(keys))]
        counts = Counter(key for _, crash in self._crashes for key in crash)
        most = max(counts.values(), default=0)
        suspects = [key for key, count in counts.items() if count == most]
        if most < CRASHES or (len(suspects) > 1 and most < _TIED):
            return []
        self._crashes = [crash for crash in self._crashes if not crash[1].intersection(suspects)]
        return suspects


class CrashLoops:
    """Which workers end again and again soon after their start. One thread at a time."""

    def __init__(self) -> None:
        self._ends: dict[int, tuple[int, str]] = {}

    def ended(self, number: int, lived: float, how: str) -> int:
        """Returns how often the worker of this number has ended in a row soon after its start."""
        times = self._ends.get(number, (0, ""))[0] + 1 if lived < QUICK_SECONDS else 0
        self._ends[number] = times, f"worker {number} ended {times} times in a row soon after its start ({how})"
        return times

    def calm(self, number: int) -> None:
        """It has lived for so long."""
        self._ends.pop(number, None)

    @property
    def trouble(self) -> str:
        """What to tell people; empty where no worker is in a loop."""
        return "; ".join(text for _, (times, text) in sorted(self._ends.items()) if times >= LOOP)
