"""Watchers: everyone who wants to hear of each version as it is committed. Knows no gRPC."""

from __future__ import annotations

import queue
import threading

from paramsync.errors import BusyError
from paramsync.version import Version

MOST = 8  # each holds a thread of the server
MOST_WAITING = 1000  # versions that one may leave unread


class Watcher:
    """One of them. `fell_behind` where it was dropped because it did not read fast enough."""

    def __init__(self) -> None:
        self._versions: queue.SimpleQueue[Version | None] = queue.SimpleQueue()
        self.fell_behind = False

    def next(self) -> Version | None:
        """The next version, as soon as there is one; None at the end."""
        return self._versions.get()

    def end(self) -> None:
        """Nothing comes after what is waiting."""
        self._versions.put(None)

    def tell(self, version: Version) -> None:
        """Never blocks."""
        self.fell_behind = self.fell_behind or self._versions.qsize() >= MOST_WAITING
        self._versions.put(None if self.fell_behind else version)


class Watchers:
    """Who watches now. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: set[Watcher] = set()
        self._closed = False

    def add(self) -> Watcher:
        """One more. Raises BusyError where there are as many as may be."""
        with self._lock:
            if len(self._watchers) >= MOST:
                raise BusyError(f"{MOST} watch already; one has to leave first")
            watcher = Watcher()
            self._watchers.add(watcher)
            if self._closed:
                watcher.end()
        return watcher

    def remove(self, watcher: Watcher) -> None:
        with self._lock:
            self._watchers.discard(watcher)

    def tell(self, version: Version) -> None:
        """Tell all of them. Never blocks."""
        with self._lock:
            for watcher in self._watchers:
                watcher.tell(version)
            self._watchers = {watcher for watcher in self._watchers if not watcher.fell_behind}

    def close(self) -> None:
        """End what everyone hears."""
        with self._lock:
            self._closed = True
            for watcher in self._watchers:
                watcher.end()
