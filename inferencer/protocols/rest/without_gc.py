"""Work on large bodies, during which no garbage is collected."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


class Undisturbed:
    """With the millions of lists of a large body each collection takes a third of a second. Every thread waits for it.

    It would find nothing: JSON has no cycles, and the lists are gone when the work is done. Any thread may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._enabled = False

    def run(self, work: Callable[[], _T]) -> _T:
        """What it returns or raises. Collections go on once nothing of this kind is done any more."""
        with self._lock:
            if not self._count:
                self._enabled = gc.isenabled()
                gc.disable()
            self._count += 1
        try:
            return work()
        finally:
            with self._lock:
                self._count -= 1
                if not self._count and self._enabled:
                    gc.enable()
