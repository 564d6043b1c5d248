"""The watch on folders: rings when something was committed, knows nothing else. A lost ring costs a poll, no more."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
_EVENTS: list[type[FileSystemEvent]] = [
    FileMovedEvent,
    FileCreatedEvent,  # of a link: of a file that is written it is too early, and does no harm
    FileClosedEvent,
    DirCreatedEvent,
    DirMovedEvent,
    DirDeletedEvent,
]

_Target = tuple[Path, int, int]  # a folder, and by device and inode which one of that name


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, and the names in it that ring; what is deeper has places of its own."""

    folder: Path
    names: re.Pattern[str]


class Watch:
    """Calls `ring` from threads of its own after each commit in some places. One thread calls `arm` and `close`.

    The folders need not exist, and may be removed and made again: `arm` looks what is there now. `places` may give
    others at each call, such as the folder behind a link that was not there before.
    """

    def __init__(self, places: Callable[[], Sequence[Place]], ring: Callable[[], None]) -> None:
        self._places = places
        self._ring = ring
        self._ears: dict[Place, _Ear] = {}

    def arm(self) -> None:
        """Watch every place, or what is above it as long as it is not there; nothing to do where that is so already."""
        places = self._places()
        for place in [one for one in self._ears if one not in places]:
            self._ears.pop(place).close()
        for place in places:
            if place not in self._ears:
                self._ears[place] = _Ear(place, self._ring)
            self._ears[place].arm()

    def close(self) -> None:
        ears, self._ears = self._ears, {}
        for ear in ears.values():
            ear.close()


class _Ear:
    """At one place."""

    def __init__(self, place: Place, ring: Callable[[], None]) -> None:
        self._place = place
        self._ring = ring
        self._observer: BaseObserver | None = None
        self._armed: _Target | None = None
        self._warned = False

    def arm(self) -> None:
        # In a loop, for the folder may have come while its parent was being armed. A folder made again can have the
        # same inode as the one removed, so that only the end of what watched it tells.
        while (target := _nearest(self._place.folder)) != self._armed or not self._alive():
            self.close()
            if target is None or not self._start(target):
                return

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
        if path == self._place.folder:
            names = self._place.names
        else:
            missing = self._place.folder.absolute().relative_to(path).parts[0]
            names = re.compile(re.escape(missing))
        observer: BaseObserver | None = None
        try:
            observer = Observer()
            observer.schedule(_Bell(folder, names, self._ring), str(folder), event_filter=_EVENTS)
            observer.start()
        except Exception as error:  # noqa: BLE001, whatever it is, no folder or no inotify watches left: there is the poll
            if not self._warned:
                self._warned = True
                _log.warning("cannot watch %s, new versions are found by polling: %s", path, error)
            if observer is not None:
                observer.stop()
            return False
        self._observer, self._armed, self._warned = observer, target, False
        return True


class _Bell(FileSystemEventHandler):
    """Runs under the observer's lock, where an exception would end its thread: it rings, and nothing else."""

    def __init__(self, folder: Path, names: re.Pattern[str], ring: Callable[[], None]) -> None:
        self._folder = str(folder)
        self._names = names
        self._ring = ring

    def dispatch(self, event: FileSystemEvent) -> None:
        path = os.fsdecode(event.dest_path or event.src_path)
        if path == self._folder or self._names.fullmatch(path.removeprefix(f"{self._folder}/")):
            self._ring()


def _nearest(folder: Path) -> _Target | None:
    """The folder, or the nearest one above it that is there."""
    if found := _identity(folder):
        return found
    return next((found for one in folder.absolute().parents if (found := _identity(one))), None)


def _identity(path: Path) -> _Target | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return path, found.st_dev, found.st_ino
