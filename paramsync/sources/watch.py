"""The watch on folders: rings when something was committed. A lost ring costs a poll, no more.

watchdog is known here alone. One observer serves all folders of this process.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

_log = logging.getLogger("paramsync.watch")

# Created links are news. Of a file that is being written creation is too early to tell, which does no harm.
_NEWS: list[type[FileSystemEvent]] = [
    FileMovedEvent,
    FileCreatedEvent,
    FileClosedEvent,
    DirCreatedEvent,
    DirMovedEvent,
    DirDeletedEvent,
]

_TRIES = 10  # folders that come and go faster than this are found by polling
# A publisher and TensorFlow rename onto `checkpoint`; a Saver writes its graph after that, and so may anybody.
_STORE = re.compile(r"checkpoint|[^/]*\.meta|graph-[^/]*\.pb|\d{1,18}|saved_model\.pb")
_NUMBERED = re.compile(r"checkpoint|\d{1,18}")
# `saved_model.pb` comes last where TensorFlow writes, and in any order where a folder is copied.
_SAVED_MODEL = re.compile(r"saved_model\.pb(txt)?|variables")
_VARIABLES = re.compile(r"variables\..*")

_Target = tuple[Path, int, int]  # a folder, and by device and inode which one of that name


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, and the names in it that ring. Folders below it are places of their own."""

    folder: Path
    names: re.Pattern[str]


class Watch:
    """Calls `ring`, from threads of its own, after each commit in its places. One thread calls `arm` and `close`.

    The folders need not exist, and may be removed and made again: `arm` looks what is there now. `places` may return
    others at each call, such as the folder behind a link that was not there before.
    """

    def __init__(self, places: Callable[[], Sequence[Place]], ring: Callable[[], None]) -> None:
        self._places = places
        self._ring = ring
        self._watches: dict[Place, _PlaceWatch] = {}

    def arm(self) -> None:
        """Watch every place, or the nearest folder above it as long as it is missing."""
        places = self._places()
        for place in self._watches.keys() - set(places):
            self._watches.pop(place).close()
        for place in places:
            if place not in self._watches:
                self._watches[place] = _PlaceWatch(place, self._ring)
            self._watches[place].arm()

    def close(self) -> None:
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.close()


class _PlaceWatch:
    """The watch on one place."""

    def __init__(self, place: Place, ring: Callable[[], None]) -> None:
        self._place = place
        self._ring = ring
        self._listener: FolderListener | None = None
        self._armed: _Target | None = None
        self._warned = False

    def arm(self) -> None:
        # More than once, for the folder may have come while its parent was being armed. A folder made again can have
        # the same inode as the one removed, so that only the end of what watched it tells.
        for _ in range(_TRIES):
            target = _nearest(self._place.folder)
            if target == self._armed and self._alive():
                return
            self.close()
            if target is None or not self._start(target):
                return

    def _alive(self) -> bool:
        return self._listener is not None and self._listener.is_alive()

    def close(self) -> None:
        listener, self._listener, self._armed = self._listener, None, None
        if listener is not None:
            listener.close()

    def _start(self, target: _Target) -> bool:
        path = target[0]
        if path == self._place.folder:
            names = self._place.names
        else:
            missing = self._place.folder.absolute().relative_to(path).parts[0]
            names = re.compile(re.escape(missing))

        def hear(name: str) -> None:
            if not name or names.fullmatch(name):
                self._ring()

        try:
            # resolved, for a link would be watched in place of what it leads to
            self._listener = FolderListener(path.resolve(), hear)
        except Exception as error:  # noqa: BLE001, whatever it is, no folder or no inotify watches left: there is the poll
            if not self._warned:
                self._warned = True
                _log.warning("cannot watch %s, new versions are found by polling: %s", path, error)
            return False
        self._armed, self._warned = target, False
        return True


class FolderListener:
    """Hears what comes into a folder, from when it is made until it is closed or the folder is removed.

    `hear` gets the name of a file that came, "" where the folder itself went. It is called on watchdog's thread, which
    an exception would end, and under its lock: it must return at once, and must not raise. Where a file is moved out of
    the folder, watchdog waits half a second for the place it went to, and holds back later events.
    """

    def __init__(self, folder: Path, hear: Callable[[str], None]) -> None:
        """Raises OSError, RuntimeError where the system has no thread left, and whatever else watchdog does."""
        if folder.exists() and not os.access(folder, os.R_OK):  # the one error that watchdog does not raise
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        self.hear = hear
        self._folder = _WatchedFolder.join(str(folder), self)

    def is_alive(self) -> bool:
        return self._folder.is_alive()

    def close(self) -> None:
        self._folder.leave(self)


class _WatchedFolder(FileSystemEventHandler):
    """One folder for all that listen to it: watchdog has one watch for each path."""

    _lock = threading.Lock()  # of the three that follow, and of each folder's listeners
    _folders: dict[str, _WatchedFolder] = {}  # noqa: RUF012, shared by all
    _observer: BaseObserver | None = None

    @classmethod
    def join(cls, path: str, listener: FolderListener) -> _WatchedFolder:
        with cls._lock:
            folder = cls._folders.get(path)
            if folder is None or not folder.is_alive():
                if folder is not None:
                    folder._unwatch()
                folder = cls._folders[path] = cls(path)
            folder._listeners += (listener,)
            return folder

    def __init__(self, path: str) -> None:
        self._path = path
        self._listeners: tuple[FolderListener, ...] = ()
        if _WatchedFolder._observer is None or not _WatchedFolder._observer.is_alive():
            observer = Observer()
            observer.start()
            _WatchedFolder._observer = observer
        self._own_observer = _WatchedFolder._observer
        self._target = _target(Path(path))  # before it is watched: what takes its place meanwhile is another one
        self._watch = self._own_observer.schedule(self, path, event_filter=_NEWS)
        self._emitter = next(emitter for emitter in self._own_observer.emitters if emitter.watch == self._watch)

    def is_alive(self) -> bool:
        """Whether the folder of that path is still watched: inotify does not tell of one that is moved away."""
        watches = self._emitter.is_alive() and self._emitter.should_keep_running()
        return watches and self._target == _target(Path(self._path))

    def leave(self, listener: FolderListener) -> None:
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other is not listener)
            if not self._listeners and self._folders.get(self._path) is self:
                del self._folders[self._path]
                self._unwatch()

    def dispatch(self, event: FileSystemEvent) -> None:
        name = os.fsdecode(event.dest_path or event.src_path).removeprefix(self._path).removeprefix("/")
        for listener in self._listeners:
            listener.hear(name)

    def _unwatch(self) -> None:
        if self._emitter in self._own_observer.emitters:
            self._own_observer.unschedule(self._watch)

    @classmethod
    def forget_all(cls) -> None:
        """In a forked child: to end a watch there would end the parent's, which has the same inotify instance."""
        cls._lock, cls._folders, cls._observer = threading.Lock(), {}, None


os.register_at_fork(after_in_child=_WatchedFolder.forget_all)


def _nearest(folder: Path) -> _Target | None:
    """The folder, or the nearest one above it that is there."""
    folders = (folder, *folder.absolute().parents)
    return next((target for path in folders if (target := _target(path))), None)


def _target(path: Path) -> _Target | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return path, facts.st_dev, facts.st_ino


def store_places(path: Path) -> list[Place]:
    """Where a directory of checkpoints, or one that shows nothing yet, shows news."""
    return [Place(path, _STORE)]


def numbered_places(path: Path, highest: list[Path]) -> list[Place]:
    """Where a directory of numbered SavedModels does, of which those at `highest` may still be written."""
    return [Place(path, _NUMBERED), *(place for directory in highest for place in _of_saved_model(directory))]


def graph_places(path: Path) -> list[Place]:
    """Where a graph file or SavedModel does, which may not exist yet."""
    places = [Place(path.absolute().parent, re.compile(re.escape(path.name)))]
    try:
        is_folder = path.is_dir()
    except OSError:  # nobody can tell now: what it becomes is found by polling
        is_folder = False
    return [*places, *_of_saved_model(path)] if is_folder else places


def _of_saved_model(path: Path) -> list[Place]:
    return [Place(path, _SAVED_MODEL), Place(path / "variables", _VARIABLES)]
