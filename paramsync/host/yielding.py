"""Gives way: a thread whose work can wait calls `give` between its steps, and its caller decides how long it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Here(threading.local):
    """The function that this thread calls to let others go first."""

    wait: Callable[[], None] | None = None


_here = _Here()


def give() -> None:
    """Let others go first, where this thread gives way. Called between steps of a fraction of a millisecond each."""
    if _here.wait is not None:
        _here.wait()


@contextmanager
def giving(wait: Callable[[], None]) -> Iterator[None]:
    """In this block, in which there may be no other, this thread calls `wait` wherever it gives way."""
    _here.wait = wait
    try:
        yield
    finally:
        _here.wait = None
