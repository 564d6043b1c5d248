"""Watches folders, and calls `ring` when something was committed. If an event is lost, the next poll finds the change.

Only this module uses watchdog. One observer serves all folders of this process.
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

# FileCreatedEvent is for links. For a file that is being written it comes too early, which does no harm.
_NEWS: list[type[FileSystemEvent]] = [
    FileMovedEvent,
    FileCreatedEvent,
    FileClosedEvent,
    DirCreatedEvent,
    DirMovedEvent,
    DirDeletedEvent,
]

_TRIES = 10  # how often `arm` tries if folders come and go meanwhile; after the last try, only polling finds versions
# Publishers and TensorFlow rename a file to `checkpoint`. A Saver, and perhaps other writers, write the graph after it.
# A publisher closes `publisher.lock` when it ends.
_STORE = re.compile(r"checkpoint|publisher\.lock|mirror\.json|[^/]*\.meta|graph-[^/]*\.pb|\d{1,18}|saved_model\.pb")
_NUMBERED = re.compile(r"checkpoint|\d{1,18}")
# TensorFlow writes `saved_model.pb` last, but a tool that copies a folder may copy it before the variables.
_SAVED_MODEL = re.compile(r"saved_model\.pb(txt)?|variables")
_VARIABLES = re.compile(r"variables\..*")

Hear = Callable[[str], None]
_Target = tuple[Path, int, int]  # a folder with its device and inode: another folder may be renamed to its path


@dataclass(frozen=True, slots=True)
class WatchedPlace:
    """A folder, and the names in it whose changes count. A folder inside it needs a place of its own."""

    folder: Path
    names: re.Pattern[str]


class Watch:
    """Calls `ring`, on its own threads, after each commit in its places. One thread calls `arm` and `close`.

    The folders need not exist, and may be removed and made again: `arm` watches the folders that exist now. `places` is
    called by each `arm`, and may return other places, such as the target of a new link.
    """

    def __init__(self, places: Callable[[], Sequence[WatchedPlace]], ring: Callable[[], None]) -> None:
        self._places = places
        self._ring = ring
        self._watches: dict[WatchedPlace, _PlaceWatch] = {}

    def arm(self) -> None:
        """Watch every place; for a missing folder, the nearest existing folder above it."""
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

    def __init__(self, place: WatchedPlace, ring: Callable[[], None]) -> None:
        self._place = place
        self._ring = ring
        self._names = place.names
        self._folder: WatchedFolder | None = None
        self._armed: _Target | None = None
        self._warned = False

    def arm(self) -> None:
        # Repeated, because the folder may appear while the watch on its parent begins. A folder that was made again can
        # have the inode of the old folder. In this case only the end of the old watch shows the change.
        for _ in range(_TRIES):
            target = _nearest(self._place.folder)
            if target == self._armed and self._folder is not None and self._folder.is_alive():
                return
            self.close()
            if target is None or not self._start(target):
                return

    def close(self) -> None:
        folder, self._folder, self._armed = self._folder, None, None
        if folder is not None:
            folder.leave(self._hear)

    def _hear(self, name: str) -> None:
        if not name or self._names.fullmatch(name):
            self._ring()

    def _start(self, target: _Target) -> bool:
        path = target[0]
        self._names = self._place.names
        if path != self._place.folder:
            missing = self._place.folder.absolute().relative_to(path).parts[0]
            self._names = re.compile(re.escape(missing))
        try:
            # resolved, because watchdog would watch a link instead of its target
            self._folder = WatchedFolder.join(path.resolve(), self._hear)
        except Exception as error:  # noqa: BLE001, whatever the reason, polling finds new versions
            if not self._warned:
                self._warned = True
                _log.warning("cannot watch %s, new versions are found by polling: %s", path, error)
            return False
        self._armed, self._warned = target, False
        return True


class WatchedFolder(FileSystemEventHandler):
    """A folder and all its listeners, until the folder is removed: watchdog allows one watch for each path.

    A listener is called with the name of each file that appears, and with "" when the folder itself is removed. The
    call comes on watchdog's thread and under watchdog's lock. So a listener must return at once. It must not raise,
    because an error would end the thread. When a file is moved out of the folder, watchdog waits half a second for its
    new place, and delays later events.
    """

    _lock = threading.Lock()  # guards the attributes below, and each folder's listeners
    _folders: dict[str, WatchedFolder] = {}  # noqa: RUF012, shared by all
    _observer: BaseObserver | None = None

    @classmethod
    def join(cls, path: Path, hear: Hear) -> WatchedFolder:
        """Add a listener to the watch on a folder.

        Raises OSError, RuntimeError if the system has no thread left, and whatever watchdog raises.
        """
        if path.exists() and not os.access(path, os.R_OK):  # watchdog itself raises no error
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        with cls._lock:
            folder = cls._folders.get(str(path))
            if folder is None or not folder.is_alive():
                if folder is not None:
                    folder._unwatch()
                folder = cls._folders[str(path)] = cls(str(path))
            folder._listeners += (hear,)
            return folder

    def __init__(self, path: str) -> None:
        self._path = path
        self._listeners: tuple[Hear, ...] = ()
        if WatchedFolder._observer is None or not WatchedFolder._observer.is_alive():
            observer = Observer()
            observer.start()
            WatchedFolder._observer = observer
        self._own_observer = WatchedFolder._observer
        # The target is noted before the folder is watched, so that `is_alive` notices a folder that replaces it then.
        self._target = _target(Path(path))
        self._watch = self._own_observer.schedule(self, path, event_filter=_NEWS)
        self._emitter = next(emitter for emitter in self._own_observer.emitters if emitter.watch == self._watch)

    def is_alive(self) -> bool:
        """Return whether the path still leads to the watched folder.

        This is checked because inotify does not report that a folder was moved.
        """
        watches = self._emitter.is_alive() and self._emitter.should_keep_running()
        return watches and self._target == _target(Path(self._path))

    def leave(self, hear: Hear) -> None:
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other != hear)
            if not self._listeners and self._folders.get(self._path) is self:
                del self._folders[self._path]
                self._unwatch()

    def dispatch(self, event: FileSystemEvent) -> None:
        name = os.fsdecode(event.dest_path or event.src_path).removeprefix(self._path).removeprefix("/")
        for hear in self._listeners:
            hear(name)

    def _unwatch(self) -> None:
        if self._emitter in self._own_observer.emitters:
            self._own_observer.unschedule(self._watch)

    @classmethod
    def forget_all(cls) -> None:
        """Forget all watches in a forked child. Ending them would end the parent's watches, too."""
        cls._lock, cls._folders, cls._observer = threading.Lock(), {}, None


os.register_at_fork(after_in_child=WatchedFolder.forget_all)


def _nearest(folder: Path) -> _Target | None:
    """Return the folder, or the nearest existing folder above it."""
    folders = (folder, *folder.absolute().parents)
    return next((target for path in folders if (target := _target(path))), None)


def _target(path: Path) -> _Target | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return path, facts.st_dev, facts.st_ino


def store_places(path: Path) -> list[WatchedPlace]:
    """Return the places to watch for a directory of checkpoints, or a directory that shows nothing yet."""
    return [WatchedPlace(path, _STORE)]


def numbered_places(path: Path, highest: list[Path]) -> list[WatchedPlace]:
    """Return the places to watch for numbered SavedModels; the SavedModels at `highest` may be incomplete."""
    return [WatchedPlace(path, _NUMBERED), *(place for directory in highest for place in _of_saved_model(directory))]


def graph_places(path: Path) -> list[WatchedPlace]:
    """Return the places to watch for a graph file or a SavedModel, which may not exist yet."""
    places = [WatchedPlace(path.absolute().parent, re.compile(re.escape(path.name)))]
    try:
        is_folder = path.is_dir()
    except OSError:  # cannot be read now: polling will notice changes
        is_folder = False
    return [*places, *_of_saved_model(path)] if is_folder else places


def _of_saved_model(path: Path) -> list[WatchedPlace]:
    return [WatchedPlace(path, _SAVED_MODEL), WatchedPlace(path / "variables", _VARIABLES)]
