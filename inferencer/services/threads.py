"""The threads that compute answers, and how many requests may be there at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from paramsync.errors import BusyError

_log = logging.getLogger("paramsync.services")
_T = TypeVar("_T")


class Threads:
    """Lives on one event loop."""

    def __init__(self, count: int, *, most: int) -> None:
        """`most` is how many may wait or be computed, each of which holds its request in memory."""
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="predict")
        self._most = most
        self.taken = 0

    async def run(self, work: Callable[[], _T]) -> _T:
        """What `work` returns or raises on one of the threads, BusyError where too many are there already.

        Work that has not begun when its caller leaves is left out. It gives up its place only when its turn has come,
        for its request is in memory until then.
        """
        if self.taken >= self._most:
            raise BusyError(f"{self._most} requests are waiting or being answered already; try again in a moment")
        left = False

        def unless_left() -> list[_T]:
            return [] if left else [work()]

        job = asyncio.get_running_loop().run_in_executor(self._executor, unless_left)
        self.taken += 1
        job.add_done_callback(self._done)
        try:
            [answer] = await asyncio.shield(job)
        except asyncio.CancelledError:
            left = True
            raise
        return answer

    def _done(self, job: asyncio.Future[list[_T]]) -> None:
        self.taken -= 1

    def close(self) -> None:
        """Waits for nothing: what is computed still is nobody's any more."""
        if self.taken:
            _log.warning("predictions that did not end within the grace, and are given up: %d", self.taken)
        self._executor.shutdown(wait=False, cancel_futures=True)
