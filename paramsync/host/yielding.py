"""Giving way: a thread whose work can wait says where it may be put off, and another says for how long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Here(threading.local):
    """What this thread calls to let others go first."""

    wait: Callable[[], None] | None = None


_here = _Here()


def give() -> None:
    """Between two pieces of work, each of a fraction of a millisecond: let others go first, if this thread does."""
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
