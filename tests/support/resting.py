"""An event loop that is busy or rests as it is told, and threads beside it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

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
