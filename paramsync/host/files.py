"""Files that either are complete or are not there, and files of others that nobody has to trust."""

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
from paramsync.host.kernel import Facts, Kernel

TEMPORARY = ".tmp-"
MAX_MESSAGE = (1 << 31) - 1  # bytes; no message of protobuf is larger

_SHOWN = 200  # characters
# What the file itself, or its name, is the cause of, until it is another one. All else is this machine's, or an
# operator's to mend: no descriptor or memory is left, a disk fails, a server is away, permission was not given.
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
    """A file to write that takes the name `path` when the block ends, and leaves nothing behind when it fails.

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
    """Give what is at a path, whatever it is, another name, from which whatever was there before goes.

    Where that can be, it has both names: nobody who looks for the first one is to find none. Raises OSError.
    """
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside, follow_symlinks=False)
    except OSError:  # it is a folder, or this file system knows no links
        path.rename(aside)


def _fresh(path: Path) -> BinaryIO:
    """A new file, in place of whatever a killed writer, or anybody, left under this name."""
    try:
        return path.open("xb")  # which follows no link, and takes an interrupt without losing a descriptor
    except FileExistsError:
        path.unlink()
        return path.open("xb")


def names(directory: Path) -> list[str]:
    """What is in a directory, by name."""
    yielding.give()
    return kernel.of_directory(directory).names(directory)


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def regular(path: Path) -> Iterator[int]:
    """The descriptor of a file to read, which must be a regular one: a link could lead elsewhere, a FIFO could block.

    Raises OSError where it cannot be opened, CorruptCheckpointError where it is something else.
    """
    yielding.give()
    calls = kernel.of(path)
    descriptor = _open(calls, path)
    try:
        _regular_size(calls.of_descriptor(descriptor), path)
        yield descriptor
    finally:
        calls.close(descriptor)


def content(path: Path, *, limit: int) -> bytes:
    """All of a regular file, which may not be larger than `limit` bytes. Raises as `regular` does."""
    yielding.give()
    calls = kernel.of(path)
    descriptor = _open(calls, path)
    try:
        size = _regular_size(calls.of_descriptor(descriptor), path)
        if size > limit:
            raise CorruptCheckpointError(path, expected=f"at most {limit} bytes", found=size)
        read = b""
        while len(read) < size and (more := calls.read(descriptor, size - len(read))):
            read += more
        return read  # a file that grows meanwhile is no concern of this reader
    finally:
        calls.close(descriptor)


def is_of_the_file(error: OSError) -> bool:
    """Whether the file that could not be read is the cause. What no system call raised is nobody else's fault."""
    return error.errno is None or error.errno in _OF_THE_FILE


def unread(path: Path, expected: str, error: OSError) -> CorruptCheckpointError | UnreadableError:
    """What to raise for an error of reading a file that had to be there."""
    why = error.strerror or str(error)
    if is_of_the_file(error):
        return CorruptCheckpointError(path, expected=expected, found=why)
    return UnreadableError(path, why)


def has(path: Path, expected: bytes) -> bool:
    """Whether it is a regular file with exactly this content."""
    try:
        return content(path, limit=len(expected)) == expected
    except (OSError, CorruptCheckpointError):
        return False


def shown(found: object) -> str:
    """What was found in a file, on one line of a message: of what is long, or means harm, the beginning will do."""
    text = " ".join((repr(found) if isinstance(found, str | bytes) else str(found)).split())
    if not text.isprintable():  # what a terminal would take for a command
        text = text.encode("unicode_escape").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _regular_size(found: Facts, path: Path) -> int:
    if not stat.S_ISREG(found.st_mode):
        raise CorruptCheckpointError(
            path, expected="a regular file", found=f"one of mode {stat.filemode(found.st_mode)}"
        )
    return found.st_size


def _open(calls: Kernel, path: Path) -> int:
    try:
        return calls.open(path)
    except OSError as error:
        if error.errno in _IRREGULAR:
            raise CorruptCheckpointError(path, expected="a regular file", found=_IRREGULAR[error.errno]) from error
        raise
