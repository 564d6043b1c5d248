"""What comes into folders, by Linux's inotify: one descriptor and one thread for all folders of this process."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

_CLOSE_WRITE, _MOVED_TO, _CREATE, _MOVE_SELF = 0x8, 0x80, 0x100, 0x800  # from sys/inotify.h
_OVERFLOW, _IGNORED, _ONLY_FOLDERS = 0x4000, 0x8000, 0x1000000
# Created links are news. Of a file that is being written creation is too early to tell, which does no harm.
_NEWS = _CREATE | _CLOSE_WRITE | _MOVED_TO | _MOVE_SELF | _ONLY_FOLDERS
_GONE = _MOVE_SELF | _IGNORED | _OVERFLOW  # of an overflow nobody knows: the folder's end may be among what was lost
_EVENT = struct.Struct("iIII")  # which watch, what, a cookie, bytes of the name that follows
_MOST = 1 << 16  # bytes of events that are read at once

_libc = ctypes.CDLL(None, use_errno=True)


class FolderListener:
    """Hears what comes into a folder, from when it is made until it is closed or the folder is gone.

    `hear` gets the name of a file that came, "" where the folder itself went. It is called on a thread that listens to
    all folders: it must return at once, and must not raise.
    """

    def __init__(self, folder: Path, hear: Callable[[str], None]) -> None:
        """Raises OSError, AttributeError where the system has no inotify, RuntimeError where it has no thread left."""
        self._hear = hear
        self._gone = False
        self._reader = _Reader.running()
        self._watch = self._reader.add(folder, self)

    def is_alive(self) -> bool:
        return not self._gone and self._reader.is_alive()

    def close(self) -> None:
        self._reader.remove(self._watch, self)

    def tell(self, event: int, name: str) -> None:
        self._gone = self._gone or bool(event & _GONE)
        self._hear(name)


class _Reader(threading.Thread):
    """Reads the events of all folders. The lock guards the listeners; it is not held while they are told."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _latest: ClassVar[_Reader | None] = None

    @classmethod
    def running(cls) -> _Reader:
        """The one of this process: another one where that could not begin, or ended with a fork."""
        with cls._lock:
            if cls._latest is None or not cls._latest.is_alive():
                cls._latest = _Reader()
            return cls._latest

    def __init__(self) -> None:
        super().__init__(name="inotify", daemon=True)
        self._listeners: dict[int, list[FolderListener]] = {}  # by watch: the kernel has one for each folder
        self._file = _checked(_libc.inotify_init1(os.O_CLOEXEC))
        try:
            self.start()
        except BaseException:
            os.close(self._file)
            raise

    def add(self, folder: Path, listener: FolderListener) -> int:
        with self._lock:
            watch = _checked(_libc.inotify_add_watch(self._file, os.fsencode(folder), _NEWS), folder)
            self._listeners.setdefault(watch, []).append(listener)
            return watch

    def remove(self, watch: int, listener: FolderListener) -> None:
        with self._lock:
            listeners = self._listeners.get(watch, [])
            if listener in listeners:
                listeners.remove(listener)
                if not listeners:
                    del self._listeners[watch]
                    if self.is_alive():  # else it is another process's, of which this one is a fork
                        _libc.inotify_rm_watch(self._file, watch)  # fails where the watch went with its folder

    def run(self) -> None:
        while True:
            events = os.read(self._file, _MOST)
            at = 0
            while at < len(events):
                watch, event, _, length = _EVENT.unpack_from(events, at)
                at += _EVENT.size + length
                name = os.fsdecode(events[at - length : at].rstrip(b"\0"))
                for listener in self._told(watch, event):
                    listener.tell(event, name)

    def _told(self, watch: int, event: int) -> list[FolderListener]:
        with self._lock:
            if event & _OVERFLOW:
                return [listener for listeners in self._listeners.values() for listener in listeners]
            return list(self._listeners.pop(watch, ()) if event & _IGNORED else self._listeners.get(watch, ()))


def _checked(result: int, path: Path | None = None) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), None if path is None else str(path))
    return result
