"""The watch on a store: rings when something was committed, knows nothing else. A lost ring costs a poll, no more."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

_log = logging.getLogger("paramsync.watch")
_COMMIT = "checkpoint"  # the name a publisher renames onto: the commit point
_META = ".meta"  # TensorFlow's Saver writes the graph after the commit
_IN_STORE: list[type[FileSystemEvent]] = [FileMovedEvent, FileCreatedEvent, FileClosedEvent, DirDeletedEvent]
_IN_PARENT: list[type[FileSystemEvent]] = [DirCreatedEvent, DirMovedEvent]

_Target = tuple[Path, int, int]  # a folder, and by device and inode which one of that name


class Watch:
    """Calls `ring` from a thread of its own after each commit in a store. One thread calls `arm` and `close`.

    The store need not exist, and may be removed and made again: `arm` looks what is there now.
    """

    def __init__(self, store: Path, ring: Callable[[], None]) -> None:
        self._store = store
        self._ring = ring
        self._observer: BaseObserver | None = None
        self._armed: _Target | None = None
        self._warned = False

    def arm(self) -> None:
        """Watch the store, or its parent as long as there is no store; nothing to do where that is so already."""
        # In a loop, for the store may have come while its parent was being armed. A folder made again can have the same
        # inode as the one removed, so that only the end of what watched it tells.
        while (target := self._target()) != self._armed or not self._alive():
            self.close()
            if target is None or not self._start(target):
                return

    def _target(self) -> _Target | None:
        return _identity(self._store) or _identity(self._store.absolute().parent)

    def _alive(self) -> bool:
        return self._observer is not None and all(one.is_alive() for one in self._observer.emitters)

    def close(self) -> None:
        observer, self._observer, self._armed = self._observer, None, None
        if observer is not None:
            observer.stop()
            observer.join()

    def _start(self, target: _Target) -> bool:
        path = target[0]
        folder = path.resolve()  # a link would be watched in place of what it leads to
        if path == self._store:
            bell, events = _Bell({_COMMIT, folder.name}, self._ring, ending=_META), _IN_STORE
        else:
            bell, events = _Bell({self._store.name}, self._ring), _IN_PARENT
        observer = Observer()
        try:
            observer.schedule(bell, str(folder), event_filter=events)
            observer.start()
        except Exception as error:  # noqa: BLE001, whatever it is, no folder or no inotify watches left: there is the poll
            if not self._warned:
                self._warned = True
                _log.warning("cannot watch %s, new versions are found by polling: %s", path, error)
            return False
        self._observer, self._armed, self._warned = observer, target, False
        return True


class _Bell(FileSystemEventHandler):
    """Runs under the observer's lock, where an exception would end its thread: it rings, and nothing else."""

    def __init__(self, names: set[str], ring: Callable[[], None], *, ending: str | None = None) -> None:
        self._names = names
        self._ring = ring
        self._ending = ending

    def dispatch(self, event: FileSystemEvent) -> None:
        name = os.path.basename(os.fsdecode(event.dest_path or event.src_path))  # noqa: PTH119, at each event
        if name in self._names or (self._ending is not None and name.endswith(self._ending)):
            self._ring()


def _identity(path: Path) -> _Target | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return path, found.st_dev, found.st_ino
