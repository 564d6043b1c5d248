"""Calls of the kernel that read files, as `os` makes them or, for a directory in memory, with the GIL kept.

Python releases the GIL during each such call, and beside a busy thread it takes 0.1 ms to have it back, many times what
the kernel takes for a small file in memory. Fifty calls hold an event loop up for 5 ms.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO that nobody writes would be waited for
SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB


class ShortStat(NamedTuple):
    """The fields of `os.stat_result` that are read here."""

    st_mode: int
    st_dev: int
    st_ino: int
    st_size: int
    st_mtime: float
    st_mtime_ns: int
    st_ctime_ns: int


Facts: TypeAlias = "os.stat_result | ShortStat"


class Kernel:
    """The calls as `os` makes them. Each raises OSError."""

    def names(self, directory: Path) -> list[str]:
        """The names in a directory."""
        with os.scandir(directory) as found:
            return [entry.name for entry in found]

    def of_name(self, directory: Path, name: str) -> Facts:
        """The facts of a name in a directory: those of a link, not of its target."""
        return os.lstat(directory / name)

    def open(self, path: Path) -> int:
        """Open a file to read, without following a link or waiting for a writer."""
        return os.open(path, TO_READ)

    def of_descriptor(self, descriptor: int) -> Facts:
        return os.fstat(descriptor)

    def share(self, descriptor: int) -> bool:
        """Take a shared lock on the open file; False where somebody has it exclusively."""
        try:
            fcntl.flock(descriptor, SHARED)
        except BlockingIOError:
            return False
        return True

    def read(self, descriptor: int, size: int) -> bytes:
        return os.read(descriptor, size)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)


class _Here(threading.local):
    """The calls that this thread uses, and the directory for which it does."""

    kernel: Kernel | None = None
    directory = ""
    begin = ""  # of the paths in that directory


_PLAIN = Kernel()
_here = _Here()


def of(path: Path) -> Kernel:
    """The calls for this file."""
    kernel = _here.kernel
    if kernel is None:
        return _PLAIN
    text = str(path)
    name = text.removeprefix(_here.begin) if text.startswith(_here.begin) else ""
    return kernel if name not in ("", "..") and "/" not in name and "\0" not in name else _PLAIN


def of_directory(path: Path) -> Kernel:
    """The calls for the names in it."""
    kernel = _here.kernel
    return kernel if kernel is not None and str(path) == _here.directory else _PLAIN


@contextmanager
def using(kernel: Kernel, directory: Path) -> Iterator[None]:
    """In this block, in which there may be no other, this thread uses these calls for files in the directory."""
    _here.directory, _here.begin = str(directory), str(directory / "x")[:-1]
    try:
        _here.kernel = kernel
        yield
    finally:
        _here.kernel = None
