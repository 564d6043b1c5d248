"""Writes files that are complete or not there, and reads files of strangers without trusting them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from paramsync.errors import CorruptCheckpointError, UnreadableError
from paramsync.host import kernel, yielding
from paramsync.host.kernel import Kernel
from paramsync.host.terminal import line

TEMPORARY = ".tmp-"
MAX_MESSAGE = (1 << 31) - 1  # bytes; no message of protobuf is larger

_SHOWN = 200  # characters
# Errors of which the file itself, or its name, is the cause. All others are for this machine, or an operator, to mend:
# no descriptor or memory is left, a disk fails, a server is away, permission was not given.
_OF_THE_FILE = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENXIO,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.EFBIG,
        errno.EOVERFLOW,
    }
)
_IRREGULAR = {errno.ELOOP: "a symbolic link", errno.ENXIO: "a socket or a device"}


@contextmanager
def aside(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A file to write, which takes the name `path` when the block ends, and leaves nothing behind when it fails.

    With `durable` its bytes are on the disk before it has the name.
    """
    temporary = path.with_name(TEMPORARY + path.name)
    try:
        with _fresh(temporary) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def keep_aside(path: Path, aside: Path) -> None:
    """Give the file or folder at a path another name, and remove what had that name before.

    A file has both names then, so that a reader never finds the first one missing. Raises OSError.
    """
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside, follow_symlinks=False)
    except OSError:  # a folder, or a file system without links
        path.rename(aside)


def _fresh(path: Path) -> BinaryIO:
    """A new file, in place of whatever a killed writer left under this name."""
    try:
        return path.open("xb")  # which follows no link, and takes an interrupt without losing a descriptor
    except FileExistsError:
        path.unlink()
        return path.open("xb")


def names(directory: Path) -> list[str]:
    """The names in a directory."""
    yielding.give()
    return kernel.of_directory(directory).names(directory)


def sync_directory(path: Path) -> None:
    """Write the names in a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def regular(path: Path) -> Iterator[int]:
    """The descriptor of a regular file to read: a link could lead elsewhere, a FIFO could block.

    Raises OSError where it cannot be opened, CorruptCheckpointError where it is anything but a regular file.
    """
    with _regular(path) as (_, descriptor, _):
        yield descriptor


def content(path: Path, *, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises as `regular` does."""
    with _regular(path) as (calls, descriptor, size):
        if size > limit:
            raise CorruptCheckpointError(path, expected=f"at most {limit} bytes", found=size)
        read = b""
        while len(read) < size and (more := calls.read(descriptor, size - len(read))):
            read += more
        return read  # a file that grows meanwhile is no concern of this reader


def is_of_the_file(error: OSError) -> bool:
    """Whether the file itself is the cause of an error of reading it, as it is where no system call raised it."""
    return error.errno is None or error.errno in _OF_THE_FILE


def unread(path: Path, expected: str, error: OSError) -> CorruptCheckpointError | UnreadableError:
    """The error to raise where a file that had to be there could not be read."""
    why = error.strerror or str(error)
    if is_of_the_file(error):
        return CorruptCheckpointError(path, expected=expected, found=why)
    return UnreadableError(path, why)


def has(path: Path, expected: bytes) -> bool:
    """Whether the path is a regular file with exactly this content."""
    try:
        return content(path, limit=len(expected)) == expected
    except (OSError, CorruptCheckpointError):
        return False


def shown(found: object) -> str:
    """A value from a file as one line of a message: shortened, and without anything that a terminal would execute."""
    text = line(repr(found) if isinstance(found, str | bytes) else str(found))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@contextmanager
def _regular(path: Path) -> Iterator[tuple[Kernel, int, int]]:
    """The calls to read a regular file with, its descriptor and its size."""
    yielding.give()
    calls = kernel.of(path)
    try:
        descriptor = calls.open(path)
    except OSError as error:
        if error.errno in _IRREGULAR:
            raise CorruptCheckpointError(path, expected="a regular file", found=_IRREGULAR[error.errno]) from error
        raise
    try:
        found = calls.of_descriptor(descriptor)
        if not stat.S_ISREG(found.st_mode):
            mode = f"one of mode {stat.filemode(found.st_mode)}"
            raise CorruptCheckpointError(path, expected="a regular file", found=mode)
        yield calls, descriptor, found.st_size
    finally:
        calls.close(descriptor)
