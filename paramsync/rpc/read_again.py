"""ReadAgain: a value from files. Changed files are read again, without a restart."""

from __future__ import annotations

import logging
import os
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, TypeVar

from paramsync.errors import SettingsError

_log = logging.getLogger("paramsync.security")
_LIMIT = 1 << 20  # most bytes; a larger file must have been named by mistake

T = TypeVar("T")


class ReadAgain(ABC, Generic[T]):
    """Reads a value from files, and again when the files change. Safe to use from any thread; can be pickled.

    If changed files cannot be used, this is logged once, and the previous value stays.
    """

    def __init__(self, *paths: Path) -> None:
        """Raises SettingsError if the files cannot be used."""
        self._paths = paths
        self._stamps = self._look()
        self._value = self._read()

    @abstractmethod
    def _read(self) -> T:
        """Read the value. Raises SettingsError."""

    def value(self) -> T:
        """Return the value. Reads the files again if they changed."""
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps  # set before reading, so that other threads do not read as well
            try:
                value = self._read()
            except SettingsError as error:
                _log.error("%s; what was there before is still used", error)
            else:
                if self._stamps == stamps:  # otherwise another thread has read newer files
                    self._value = value
                _log.info("read again: %s", ", ".join(map(str, self._paths)))
        return self._value

    def _look(self) -> tuple[tuple[int, ...], ...]:
        return tuple(_stamp(path) for path in self._paths)


def read_secret(option: str, path: Path) -> bytes:
    """Return the content of a file with a secret. Raises SettingsError if anyone but its owner may read it.

    The group may read a file of another owner, because secrets are mounted in this way for unprivileged processes.
    """
    content, status = _read(option, path)
    if too_open := status.st_mode & (0o077 if status.st_uid == os.geteuid() else 0o007):
        who = "everybody on this machine" if too_open & 0o007 else "its group"
        raise SettingsError(
            f"{option} {path}: expected mode 0600, found {status.st_mode & 0o7777:04o}, by which {who} may use it:"
            f" chmod 600 {path}"
        )
    return content


def read_file(option: str, path: Path) -> bytes:
    """Return the content of a file that an option names. Raises SettingsError."""
    return _read(option, path)[0]


def _read(option: str, path: Path) -> tuple[bytes, os.stat_result]:
    """Read a file. Opens it without blocking, because a FIFO would wait for a writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                found = stat.filemode(status.st_mode)
                raise SettingsError(f"{option} {path}: expected a regular file, found one of mode {found}")
            content = os.read(descriptor, _LIMIT + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SettingsError(f"{option} {path}: cannot be read: {error.strerror}") from error
    if len(content) > _LIMIT:
        raise SettingsError(f"{option} {path}: expected a file of at most {_LIMIT} bytes, found a larger one")
    return content, status


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
