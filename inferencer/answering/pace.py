"""How fast one signature of a graph is computed, and how many requests for it come together: what was seen lately."""

from __future__ import annotations

from dataclasses import dataclass

PROMPT_SECONDS = 0.002  # what may be computed on the event loop takes less
_SLOW_SECONDS = 0.02  # one that takes longer is not made there again, until as many were fast once more
_STUCK_SECONDS = 0.2  # one that takes longer is not put down to the machine
_FAST = 8  # calls on threads that were that fast, before the first on the event loop
_DOUBTS = 3  # calls one after the other that took longer: fewer can be the machine's fault, which was busy elsewhere
_EACH_SECONDS = 0.00025
_MOST_SECONDS = 0.008
_LATELY = 0.05  # seconds
_AGAIN = 16  # calls with as many requests as were expected, before more are


@dataclass(slots=True)
class Pace:
    """Numbers of one signature. `together` and `prompt` are its traits, see there. For one thread."""

    together: bool
    prompt: bool
    expected: int = 1
    """How many requests come together."""
    running: int = 0
    """Calls on threads now."""
    _fast: int = 0
    _size: int = 0
    _met: int = 0
    _ended: float = 0.0
    _doubts: int = 0

    @property
    def patience(self) -> float:
        """The most seconds that one waits for the others: about what it takes to receive them."""
        return min(_MOST_SECONDS, _EACH_SECONDS * (self.expected + 1))

    def is_prompt(self, size: int) -> bool:
        """Whether a call with so many bytes of inputs is expected to hold up the event loop for a moment only."""
        return self._fast >= _FAST and size <= self._size

    def is_alone(self, now: float) -> bool:
        """Whether no other request is expected with one that comes now."""
        if now - self._ended > _LATELY:
            self.expected = 1
        return self.expected == 1

    def took(self, size: int, seconds: float, now: float) -> None:
        """A call with so many bytes of inputs did, which ended now."""
        self._ended = now
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

    def met(self, count: int) -> None:
        """So many came, as many as were expected or more."""
        self._met += 1
        if count > self.expected:
            self.expected = count
        elif count > 1 and self._met % _AGAIN == 0:
            self.expected += 1 + count // 4

    def missed(self, count: int) -> None:
        """Only so many came in time."""
        self.expected = max(1, count)
