"""Rests: when an event loop has nothing to do, and a thread beside it may use the interpreter.

Python has no threads that are less urgent than others: two that want the interpreter get half of it each. Where a loop
is busy for most of the time, a few milliseconds of another thread's work hold up every answer of the next ten.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from queue import Empty, SimpleQueue
from selectors import DefaultSelector, SelectorKey

from paramsync.host import yielding

PATIENCE = 0.05  # seconds after which a thread waits no more in one block: a loop may have no rest for long
_ONCE = 0.01  # of these in one place: a loop that is busy for long does not use them up where the work begins


class Rests(DefaultSelector):
    """The selector of an event loop, which takes no lock and waits for nobody because of those who wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._resting = True  # as long as it has begun with nothing: a first version is not to wait for that
        self._waiting: deque[SimpleQueue[None]] = deque()
        self.before: Callable[[], bool] | None = None
        """Asked on its own thread when it would rest: whether there is something to do at once by now."""
        self.last: Callable[[], bool] | None = None
        """Asked as `before` is, where that has nothing to do."""
        self.count = 0
        """How often nothing was due at once."""

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """As asyncio asks for: 0 where there is something to do already."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        if (self.before or self.last) and ((found := super().select(0)) or self._is_due()):
            return found
        self.count += 1
        self._resting = True  # before it looks who waits: who comes later sees this
        try:
            if self._waiting:
                if found := super().select(0):
                    return found
                with suppress(IndexError):  # given up meanwhile
                    self._waiting.popleft().put(None)
            return super().select(timeout)
        finally:
            self._resting = False

    def _is_due(self) -> bool:
        return (self.before is not None and self.before()) or (self.last is not None and self.last())

    def first(self) -> AbstractContextManager[None]:
        """In this block the thread gives way to the loop: it goes on while that rests, or once its patience ends."""
        return yielding.giving(_Guest(self).wait)

    def is_resting(self) -> bool:
        """Whether it waits, and nothing has come that it would wake up for."""
        if not self._resting:
            return False
        news = select.poll()
        with suppress(ValueError):  # closed meanwhile
            news.register(self.fileno(), select.POLLIN)
        return not news.poll(0) and self._resting  # others run during the call: it may have been woken

    def wait(self, seconds: float) -> None:
        """Until it rests, or for so long."""
        turn: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(turn)
        try:
            if not self.is_resting():  # it may do so by now, and not look again for long
                with suppress(Empty):
                    turn.get(timeout=seconds)
        finally:
            with suppress(ValueError):
                self._waiting.remove(turn)


class _Guest:
    def __init__(self, rests: Rests) -> None:
        self._rests = rests
        self._left = PATIENCE

    def wait(self) -> None:
        if self._left <= 0 or self._rests.is_resting():
            return
        began = time.monotonic()
        end = began + min(self._left, _ONCE)
        while (left := end - time.monotonic()) > 0:
            self._rests.wait(left)
            if self._rests.is_resting():
                break
        self._left -= time.monotonic() - began
