"""How fast one signature of a graph is computed, and whether requests for it come alone: what was seen lately."""

from __future__ import annotations

from dataclasses import dataclass

PROMPT_SECONDS = 0.002  # what may be computed on the event loop takes less
_SLOW_SECONDS = 0.02  # one that takes longer is not made there again, until as many were fast once more
_STUCK_SECONDS = 0.2  # one that takes longer is not put down to the machine
_FAST = 8  # calls on threads that were that fast, before the first on the event loop
_DOUBTS = 3  # calls one after the other that took longer: fewer can be the machine's fault, which was busy elsewhere


@dataclass(slots=True)
class Latency:
    """Numbers of one signature. `together` and `prompt` are its traits, see there. For one thread."""

    together: bool
    prompt: bool
    alone: bool = True
    """Whether the last call on the event loop for which requests were gathered was for one."""
    running: int = 0
    """Calls on threads now."""
    _fast: int = 0
    _size: int = 0
    _doubts: int = 0

    def is_prompt(self, size: int) -> bool:
        """Whether a call with so many bytes of inputs is expected to hold up the event loop for a moment only."""
        return self._fast >= _FAST and size <= self._size

    def took(self, size: int, seconds: float) -> None:
        """A call with so many bytes of inputs did."""
        if not self.prompt:
            return
        if seconds < PROMPT_SECONDS:
            self._doubts = 0
            self._fast += 1
            self._size = max(self._size, size if seconds > PROMPT_SECONDS / 2 else 2 * size)
            return
        self._doubts += 1
        if self._doubts >= _DOUBTS or seconds > _STUCK_SECONDS:
            self._doubts = 0
            self._size = min(self._size, size // 2)
            if seconds > _SLOW_SECONDS:
                self._fast = 0
