"""Bells that a watch rings, and commits that make it ring them."""

from __future__ import annotations

import threading
from pathlib import Path

from paramsync.sources.watch import Watch, store_places

SOON = 10.0  # seconds; a test that waits this long has failed


class Bell:
    """Counts rings, and lets a test wait for the next ring."""

    def __init__(self) -> None:
        self.rings = 0
        self._rung = threading.Semaphore(0)

    def ring(self) -> None:
        self.rings += 1
        self._rung.release()

    def rang(self, seconds: float = SOON) -> bool:
        return self._rung.acquire(timeout=seconds)


def watch_on(store: Path, bell: Bell) -> Watch:
    return Watch(lambda: store_places(store), bell.ring)


def commit(store: Path, text: str = "x") -> None:
    aside = store / ".tmp-checkpoint"
    aside.write_text(text)
    aside.replace(store / "checkpoint")
