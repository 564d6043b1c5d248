"""Finds why workers crash: on a version that they computed, or in a crash loop. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

CRASHES = 3  # after this many crashes of workers that computed the same version, this version is the cause
_TIED = 2 * CRASHES  # the same for several versions that were in equally many crashes: each of them is a cause
_WITHIN_SECONDS = 60.0
QUICK_SECONDS = 10.0  # an end sooner than this after the worker's start is a quick end
LOOP = 3  # quick ends in a row before they are reported


class Crashes:
    """Finds the versions on which workers crash. One thread at a time."""

    def __init__(self) -> None:
        self._crashes: list[tuple[float, frozenset[int]]] = []

    def add(self, keys: Collection[int], now: float) -> list[int]:
        """Add the crash of a worker that computed the versions of these keys. Returns the versions that are the cause.

        A worker may have computed several versions at the time. The cause is the version that was in most crashes.
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
    """Finds workers that end again and again soon after their start. One thread at a time."""

    def __init__(self) -> None:
        self._ends: dict[int, tuple[int, str]] = {}

    def ended(self, number: int, lived: float, how: str, *, explained: bool = False) -> int:
        """Add the end of a worker; it is `explained` if a version was the cause. Returns its quick ends in a row."""
        times = self._ends.get(number, (0, ""))[0] + 1 if lived < QUICK_SECONDS and not explained else 0
        self._ends[number] = times, f"worker {number} ended {times} times in a row soon after its start ({how})"
        return times

    def calm(self, number: int) -> None:
        """Forget the quick ends of this number: its worker has lived long enough."""
        self._ends.pop(number, None)

    @property
    def trouble(self) -> str:
        """The workers in a crash loop, as a text for operators; empty if there are none."""
        return "; ".join(text for _, (times, text) in sorted(self._ends.items()) if times >= LOOP)
