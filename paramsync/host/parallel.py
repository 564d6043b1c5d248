"""Runs memory-bound work on a few threads: what numpy and checksums do to large buffers with the GIL released."""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")

PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""The processors that this process may use, which a container or `taskset` may limit."""
THREADS = min(4, max(1, PROCESSORS - 1))
"""More threads do not read memory any faster, and one processor of few is left to serving or training."""


def each(work: Callable[[T], object], items: Iterable[T], *, threads: int = THREADS) -> None:
    """Call `work` with every item, on this thread and `threads` - 1 others. Returns when all is done.

    The first error ends the work soon, and is raised here. The threads live as long as the call: starting one costs
    about a tenth of a millisecond, so small work takes `threads=1`.
    """
    crew = _Crew(work, items)
    try:
        for _ in range(threads - 1):
            crew.start()
        crew.take()
        crew.wait()
    except BaseException as error:  # noqa: BLE001, an interrupt, too: no thread works on when this has returned
        crew.errors.insert(0, error)
        while not crew.is_over:
            with suppress(BaseException):  # further interrupts: all threads end with what they are at
                crew.wait()
    if crew.errors:
        try:
            raise crew.errors[0]
        finally:
            crew.errors.clear()  # else the error, its traceback and this frame would keep each other alive


class _Crew(Generic[T]):
    """Threads that share items. Starting one does not wait until it runs, as `threading.Thread` would."""

    def __init__(self, work: Callable[[T], object], items: Iterable[T]) -> None:
        self.errors: list[BaseException] = []
        self._work: Callable[[T], object] | None = work
        self._items = iter(items)
        self._lock = threading.Lock()
        self._ended: list[threading.Lock] = []  # one for each thread, which gives it back at its end

    def start(self) -> None:
        ended = threading.Lock()
        ended.acquire()
        _thread.start_new_thread(self._run, (ended,))
        self._ended.append(ended)

    def take(self) -> None:
        """Work until nothing is left."""
        work = self._work
        while work and not self.errors:
            with self._lock:
                item = next(self._items, None)
            if item is None:
                return
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001, raised again by the caller's thread
                self.errors.append(error)

    @property
    def is_over(self) -> bool:
        """Whether `wait` has returned."""
        return self._work is None

    def wait(self) -> None:
        """Wait until all threads have ended, but for their last instructions, which refer to no work any more."""
        for ended in self._ended:
            with ended:
                pass
        self._work = None

    def _run(self, ended: threading.Lock) -> None:
        self.take()
        ended.release()
