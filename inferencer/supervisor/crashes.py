"""Finds the versions on which workers crash, and workers that end again and again. Pure: no clock, no processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

CRASHES = 3  # after this many crashes of workers that computed the same version, this version is the cause
_TIED = 2 * CRASHES  # if several versions were in the most crashes, all of them are the cause after this many
_WITHIN_SECONDS = 60.0
QUICK_SECONDS = 10.0  # an end sooner than this after the worker's start is a quick end
LOOP = 3  # after this many quick ends in a row, a worker is reported


class Crashes:
    """Finds the versions on which workers crash. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._crashes: list[tuple[float, frozenset[int]]] = []

    def add(self, keys: Collection[int], now: float) -> list[int]:
        """Add the crash of a worker that was computing the versions with these keys. Returns the keys of the versions
        that are the cause.

        A worker may compute several versions at a time. The cause is the version that was in the most crashes.
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
    """Finds workers that end again and again soon after their start. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._ends: dict[int, tuple[int, str]] = {}

    def ended(self, number: int, lived: float, how: str, *, explained: bool = False) -> int:
        """Add the end of a worker that lived for `lived` seconds. `explained` says that a version was the cause.

        Returns how many quick ends this worker's number has had in a row.
        """
        times = self._ends.get(number, (0, ""))[0] + 1 if lived < QUICK_SECONDS and not explained else 0
        self._ends[number] = times, f"worker {number} ended {times} times in a row soon after its start ({how})"
        return times

    def calm(self, number: int) -> None:
        """Forget the quick ends of this number: its worker has lived long enough."""
        self._ends.pop(number, None)

    @property
    def trouble(self) -> str:
        """Names the workers in a crash loop, for operators; empty if there are none."""
        return "; ".join(text for _, (times, text) in sorted(self._ends.items()) if times >= LOOP)
