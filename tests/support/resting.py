"""An event loop that is busy or rests as it is told, and threads beside it."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from inferencer.event_loop.idle import Rests
from paramsync.host import yielding

LONG = 30.0  # seconds; a test that waits this long has failed
FEW = 0.4  # seconds of patience, where it is to end: long beside whatever else keeps a thread from running


@contextmanager
def busy(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """In this block the loop is at one callback, which leaves the interpreter to others."""
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        ended.wait(LONG)

    loop.call_soon_threadsafe(work)
    assert begun.wait(LONG)
    try:
        yield
    finally:
        ended.set()


class Guests:
    """Threads that do this, from now on."""

    def __init__(self, count: int, work: Callable[[], object]) -> None:
        self._work = work
        self._left = [None] * count
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in self._left]
        for one in self._threads:
            one.start()

    def _run(self) -> None:
        self._work()
        self._left.pop()

    def are_done(self) -> bool:
        """Without an error."""
        return not self._left

    def join(self) -> None:
        """Fails where one of them waits for the end of a long patience."""
        for one in self._threads:
            one.join(LONG / 3)
        assert self.are_done()


def seconds(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def gives(rests: Rests, count: int = 1) -> None:
    """One block of so many pieces of work."""
    with rests.first():
        for _ in range(count):
            yielding.give()


def put_off(rests: Rests) -> float:
    """For how many seconds many pieces of work in one block are."""
    took: list[float] = []
    Guests(1, lambda: took.append(seconds(lambda: gives(rests, 100)))).join()
    return took[0]


@contextmanager
def always_busy(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """In this block the loop has always something to do at once."""
    ended = threading.Event()

    def again() -> None:
        if not ended.is_set():
            time.sleep(0.001)
            loop.call_soon(again)

    loop.call_soon_threadsafe(again)
    try:
        yield
    finally:
        ended.set()


def answers(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether it does what it is asked to."""
    came = threading.Event()
    loop.call_soon_threadsafe(came.set)
    return came.wait(LONG)


async def turns(count: int, spans: list[tuple[float, float]]) -> None:
    """Busy and at rest by turns; when it was busy goes into the list."""
    for _ in range(count):
        began = time.monotonic()
        time.sleep(0.01)
        spans.append((began, time.monotonic()))
        await asyncio.sleep(0.005)


def left() -> list[SimpleQueue[None]]:
    """Of what threads wait on, all that is still in memory."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is SimpleQueue]
