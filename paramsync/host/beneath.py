"""Opens files beneath a directory without following links: nothing that lies elsewhere is read.

Each part of a path is opened in the folder that was opened before it. So there is no moment between a look and a use at
which a link could replace a folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paramsync.errors import CorruptCheckpointError
from paramsync.host import files, kernel
from paramsync.host.kernel import Facts, Kernel

_TO_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def folder(directory: Path, *parts: str) -> Iterator[int]:
    """The descriptor of a folder beneath a directory, which itself may be a link.

    Raises OSError where it cannot be opened, CorruptCheckpointError where a part of the path is a link.
    """
    path = directory
    descriptor = os.open(directory, _TO_LIST)
    try:
        for part in parts:
            path /= part
            within = _within(descriptor, part, path)
            os.close(descriptor)
            descriptor = within
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def reading(directory: Path, *parts: str) -> Iterator[None]:
    """In this block this thread reads the files of this folder by its descriptor. Raises as `folder` does."""
    with folder(directory, *parts) as descriptor, kernel.using(_Within(descriptor), directory.joinpath(*parts)):
        yield


def content(directory: Path, name: str, *, limit: int) -> bytes:
    """The content of a regular file of this name, "folder/file", beneath a directory. Raises as `folder` does.

    Raises ValueError for a name that leads elsewhere, whether anything is there or not.
    """
    *parts, last = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in (*parts, last)):
        raise ValueError(name)
    with reading(directory, *parts):
        return files.content(directory.joinpath(*parts, last), limit=limit)


def _within(descriptor: int, name: str, path: Path) -> int:
    try:
        return os.open(name, _TO_LIST | os.O_NOFOLLOW, dir_fd=descriptor)
    except OSError as error:
        if _is_link(descriptor, name):
            raise CorruptCheckpointError(path, expected="a folder", found="a symbolic link") from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def _is_link(descriptor: int, name: str) -> bool:
    try:
        os.readlink(name, dir_fd=descriptor)
    except OSError:
        return False
    return True


class _Within(Kernel):
    """Calls by names in a folder that is open."""

    def __init__(self, descriptor: int) -> None:
        self._folder = descriptor

    def names(self, directory: Path) -> list[str]:
        with os.scandir(self._folder) as found:
            return [entry.name for entry in found]

    def of_name(self, directory: Path, name: str) -> Facts:
        return os.lstat(name, dir_fd=self._folder)

    def open(self, path: Path) -> int:
        return os.open(path.name, kernel.TO_READ, dir_fd=self._folder)
