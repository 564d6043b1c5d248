"""Listeners tell of news in one folder, by watchdog, which is known here alone."""

from __future__ import annotations

import errno
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

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
from watchdog.utils import UnsupportedLibcError

try:
    from watchdog.observers.inotify_c import (
        CallbackId,
        InotifyConstants,
        InotifyEvent,
        InotifyFD,
        Mask,
        WatchDescriptor,
    )

    _HAS_INOTIFY = True
except (ImportError, UnsupportedLibcError):  # watchdog 6, which is what there is for Python 3.10, or no Linux
    _HAS_INOTIFY = False

Hear = Callable[[str], None]
"""Takes the name of a file that came into a folder, "" where the folder itself went. It is called on a thread of
watchdog's, which an exception would end, and which others wait for: it must return at once."""


class Listener(Protocol):
    """Hears what comes into a folder, from when it is made until it is closed or the folder is gone."""

    def is_alive(self) -> bool: ...
    def close(self) -> None: ...


class InotifyListener:
    """By watchdog's inotify, on its one thread for all folders.

    An observer has three threads for each folder, which take the GIL from threads that answer, and more
    events. When a file is moved away, it waits half a second for the place where it went, and holds back later events.
    """

    _shared: ClassVar[InotifyFD | None] = None
    _sharing = threading.Lock()

    def __init__(self, folder: Path, hear: Hear) -> None:
        """Raises OSError, and whatever else watchdog does."""
        self._hear = hear
        self._gone = False
        self._id = CallbackId(id(self))
        self._reader = self._running()
        news = (
            InotifyConstants.IN_CREATE  # of a link: of a file that is written it is too early, and does no harm
            | InotifyConstants.IN_CLOSE_WRITE
            | InotifyConstants.IN_MOVED_TO
            | InotifyConstants.IN_MOVE_SELF
            | InotifyConstants.IN_ONLYDIR
        )
        self._watch = self._reader.add_callback(os.fsencode(folder), Mask(news), self, self._id)
        if self._watch < 0:  # the one error that watchdog does not raise
            self.close()
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    def is_alive(self) -> bool:
        return not self._gone and self._reader.is_alive()

    def close(self) -> None:
        self._reader.remove_callbacks([(self._watch, self._id)])

    def on_event(self, event: InotifyEvent) -> None:
        if event.is_move_self:  # another may have its place by now, or may have had it for a moment
            self._gone = True
        self._hear(os.fsdecode(event.name))

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        self._gone = True
        self._hear("")

    def on_queue_overflow(self) -> None:
        self._gone = True  # for all that is known: that the folder was removed may be among what was lost
        self._hear("")

    @classmethod
    def _running(cls) -> InotifyFD:
        """The reader of all folders: another one where that has ended, or could not begin."""
        with cls._sharing:
            if cls._shared is None or (cls._shared.ident is not None and not cls._shared.is_alive()):
                with _nothing_left_open():
                    cls._shared = InotifyFD()
            if cls._shared.ident is None:
                cls._shared.start()
            return cls._shared


class ObserverListener:
    """By an observer of watchdog's, of the kind that this system has."""

    _EVENTS: tuple[type[FileSystemEvent], ...] = (
        FileMovedEvent,
        FileCreatedEvent,
        FileClosedEvent,
        DirCreatedEvent,
        DirMovedEvent,
        DirDeletedEvent,
    )

    def __init__(self, folder: Path, hear: Hear) -> None:
        """Raises OSError, and whatever else watchdog does."""
        if folder.exists() and not os.access(folder, os.R_OK):  # the one error that watchdog does not raise
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        with _nothing_left_open():
            self._observer = Observer()
        self._observer.schedule(_Handler(folder, hear), str(folder), event_filter=list(self._EVENTS))
        try:
            with _nothing_left_open():
                self._observer.start()
        except Exception:
            self._observer.stop()
            raise

    def is_alive(self) -> bool:
        return all(one.is_alive() for one in self._observer.emitters)

    def close(self) -> None:
        self._observer.stop()
        self._observer.join()


class _Handler(FileSystemEventHandler):
    def __init__(self, folder: Path, hear: Hear) -> None:
        self._folder = str(folder)
        self._hear = hear

    def dispatch(self, event: FileSystemEvent) -> None:
        self._hear(os.fsdecode(event.dest_path or event.src_path).removeprefix(self._folder).removeprefix("/"))


@contextmanager
def _nothing_left_open() -> Iterator[None]:
    """Where watchdog cannot begin it forgets the descriptors that it has by then.

    Where the system has no watches, descriptors or threads left, each look of a follower would leave three.
    """
    try:
        yield
    except Exception as error:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if (forgotten := _not_begun(frame.f_locals.get("self"))) is not None:
                for name in {"_inotify_fd", "_kill_r", "_kill_w"} & vars(forgotten).keys():
                    os.close(getattr(forgotten, name))
                break
        raise


def _not_begun(found: Any) -> Any:
    """What has the descriptors, where that is part of this and no thread reads there yet."""
    kind = type(found).__name__
    if kind == "Inotify":  # of watchdog 6, which it has before its thread
        return found
    if kind == "InotifyBuffer" and found.ident is None:
        return vars(found).get("_inotify")
    return found if kind == "InotifyFD" and found.ident is None else None


listen: Callable[[Path, Hear], Listener] = InotifyListener if _HAS_INOTIFY else ObserverListener
