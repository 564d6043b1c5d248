"""Runs memory-bound work on a few threads: what numpy and checksums do to large buffers with the GIL released."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from paramsync.host.processes import processors

T = TypeVar("T")

PROCESSORS = processors()
"""The processors that this process may use, which a container or `taskset` may limit."""
THREADS = min(4, max(1, PROCESSORS - 1))
"""More threads do not read memory any faster, and one processor of few is left to serving or training."""


def each(work: Callable[[T], object], items: Iterable[T], *, threads: int = THREADS) -> None:
    """Call `work` with every item, on this thread and `threads` - 1 others. Returns when all is done.

    The first error ends the work soon, and is raised here. The threads live as long as the call: starting one costs
    about a tenth of a millisecond, so small work takes `threads=1`.
    """
    job, queue, turn = [work], iter(items), threading.Lock()
    running: list[threading.Lock] = []  # one for each thread, which releases it at its end
    errors: list[BaseException] = []

    def take() -> None:
        task = job[0] if job else None
        while task and not errors:
            with turn:
                item = next(queue, None)
            if item is None:
                return
            try:
                task(item)
            except BaseException as error:  # noqa: BLE001, raised again by the caller's thread
                errors.append(error)

    def run(ended: threading.Lock) -> None:
        take()
        ended.release()

    def wait() -> None:
        for ended in running:
            with ended:
                pass
        job.clear()  # the last instructions of a thread refer to no work any more

    try:
        for _ in range(threads - 1):
            ended = threading.Lock()
            ended.acquire()
            _thread.start_new_thread(run, (ended,))  # does not wait until it runs, as `threading.Thread` would
            running.append(ended)
        take()
        wait()
    except BaseException as error:  # noqa: BLE001, an interrupt, too: no thread works on when this has returned
        errors.insert(0, error)
        while job:
            with suppress(BaseException):  # further interrupts: all threads end with what they are at
                wait()
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # else the error, its traceback and this frame would keep each other alive
