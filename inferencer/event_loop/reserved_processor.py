"""A processor for an event loop that is busy: it stays there, and the other threads of the process stay off it. Linux.

Where the kernel places threads as it likes, one that wakes up now and then, as a follower's does, comes to where the
loop is. That waits for it, or moves to where nothing that it needs is in the caches.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_log = logging.getLogger("paramsync.inferencer")
_PERIOD = 0.25  # seconds between two looks
_FEWEST = 3  # processors: of two, all others would have one
_BUSY = 0.5  # of the time that the loop runs, from which on it is given one
_IDLE = 0.4  # the same, below which it has none any more
_PUT_OFF = 0.1  # of the time that it ran: a loop that waited longer shares its processor with another process
_CROWDED = 0.8  # of the other processors: where the other threads use more, they need this one too
_AWAY = 10.0  # seconds for which it is left to the kernel then
_PLACE = 36  # among what the system says of a thread after its name: the processor where it is

_THREADS = Path("/proc/self/task")


class _Times(NamedTuple):
    """Seconds so far."""

    now: float
    ran: float
    waited: float
    """For how long the thread could have run."""
    others: float
    """For how long all other threads of the process ran together."""


class OwnProcessor:
    """That of the thread which makes it, one of each process. `keep` looks as long as its event loop runs."""

    def __init__(self) -> None:
        self._me = threading.get_native_id()
        self._all = _allowed(self._me)
        self._mine: int | None = None
        self._seen: set[int] = set()  # threads that were looked at since it has one
        self._moved: set[int] = set()  # those of them that are kept off it
        self._again = 0.0
        self._before: _Times | None = None

    async def keep(self) -> None:
        """Until it is cancelled. Where there are few processors, or nobody may choose, there is nothing to do."""
        if len(self._all) < _FEWEST:
            return
        try:
            while True:
                await asyncio.sleep(_PERIOD)
                try:
                    self.look()
                except (OSError, ValueError, IndexError) as error:  # no descriptors, or another system's files
                    _log.debug("the event loop has no processor of its own: %s", error)
                    self.leave()
                    self._before = None
        finally:
            self.leave()

    def look(self) -> None:
        """Take one, or leave it, by what was since the last look. Raises OSError, ValueError, IndexError."""
        before, self._before = self._before, self._times()
        if before is None:
            return
        seconds, ran, waited, others = (now - then for now, then in zip(self._before, before, strict=True))
        if self._mine is None:
            if ran >= _BUSY * seconds and self._before.now >= self._again:
                self._take()
        elif ran < _IDLE * seconds or _allowed(self._me) != {self._mine}:
            self.leave()
        elif waited > _PUT_OFF * ran or others > _CROWDED * (len(self._all) - 1) * seconds:
            self.leave()
            self._again = self._before.now + _AWAY
        else:
            self._keep_others_off(self._mine)

    def leave(self) -> None:
        """All threads may be anywhere again."""
        if self._mine is None:
            return
        mine, self._mine = self._mine, None
        others = self._all - {mine}
        for one in {self._me, *self._moved, *_threads()}:
            allowed = _allowed(one)
            # else somebody gave it another place; of what was moved the system may have taken processors since
            if allowed in (others, {mine}) or (one in self._moved and allowed < others):
                _allow(one, self._all)
        self._seen.clear()
        self._moved.clear()

    def _take(self) -> None:
        self._all = allowed = _allowed(self._me)  # somebody may have changed it
        if len(allowed) >= _FEWEST:
            mine = int((_THREADS / str(self._me) / "stat").read_text().rpartition(")")[2].split()[_PLACE])
            self._mine = mine
            _allow(self._me, {mine})
            self._keep_others_off(mine)

    def _keep_others_off(self, mine: int) -> None:
        """Those that came since too. What this thread starts begins beside it, and is moved at the next look."""
        there = _threads() - {self._me}
        for one in there - self._seen:
            if _allowed(one) in (self._all, {mine}):  # else somebody gave it a place of its own
                _allow(one, self._all - {mine})
                self._moved.add(one)
        self._seen = there
        self._moved &= there

    def _times(self) -> _Times:
        ran, waited, _ = map(int, (_THREADS / str(self._me) / "schedstat").read_text().split())
        return _Times(time.monotonic(), ran / 1e9, waited / 1e9, time.process_time() - ran / 1e9)


def _threads() -> set[int]:
    """All of the process; none where the system hides them, or has no descriptor left."""
    with suppress(OSError):
        return {int(one.name) for one in _THREADS.iterdir()}
    return set()


def _allowed(thread: int) -> set[int]:
    if sys.platform == "linux":
        with suppress(OSError):  # it has ended
            return os.sched_getaffinity(thread)
    return set()


def _allow(thread: int, processors: set[int]) -> None:
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setaffinity(thread, processors)
