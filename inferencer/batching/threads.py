"""The threads that compute answers, and read and write large messages."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")

Done = Callable[[Any, Exception | None], None]
_Job = tuple[Callable[[], Any], Done, asyncio.AbstractEventLoop]


class Threads:
    """So many threads for one event loop. They keep no process alive.

    The one that was busy last is used first: what it works with is in its processor's caches.
    """

    def __init__(self, count: int, name: str = "predict") -> None:
        self.count = count
        self.taken = 0
        """How much is done, or waits to be, now."""
        self._idle: list[SimpleQueue[_Job | None]] = [SimpleQueue() for _ in range(count)]
        self._waiting: deque[_Job] = deque()
        self._all = tuple(self._idle)
        for number, own in enumerate(self._all):
            threading.Thread(target=self._run, args=(own,), name=f"{name} {number}", daemon=True).start()

    def start(self, work: Callable[[], Any], done: Done) -> None:
        """Call `done` on this event loop with what the work returns, or with its error."""
        self.taken += 1
        job = (work, done, asyncio.get_running_loop())
        if self._idle:
            self._idle.pop().put(job)
        else:
            self._waiting.append(job)

    async def run(self, work: Callable[[], _T]) -> _T:
        """What the work returns or raises. Work that has not begun when its caller leaves is left out."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def done(result: _T, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.start(lambda: None if future.cancelled() else work(), done)
        return await future

    def close(self) -> None:
        """They end with what they do now; waits for nothing."""
        for own in self._all:
            own.put(None)

    def _run(self, own: SimpleQueue[_Job | None]) -> None:
        while (job := own.get()) is not None:
            work, done, loop = job
            result, found = None, None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001, it is raised on the loop
                found = error
            try:
                loop.call_soon_threadsafe(self._finish, own, done, result, found)
            except RuntimeError:  # the loop was closed: nobody waits for it
                return
            del job, work, done, result, found  # nothing is held while there is nothing to do

    def _finish(self, own: SimpleQueue[_Job | None], done: Done, result: Any, error: Exception | None) -> None:
        self.taken -= 1
        if self._waiting:
            own.put(self._waiting.popleft())
        else:
            self._idle.append(own)
        done(result, error)
