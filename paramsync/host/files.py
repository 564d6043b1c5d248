"""Writes files that are complete or absent, reads files that others wrote, and makes text that people read."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from paramsync.errors import CorruptCheckpointError, UnreadableError

TEMPORARY = ".tmp-"
MAX_MESSAGE = (1 << 31) - 1  # bytes; no message of protobuf is larger

_SHOWN = 200  # characters of a value in a message
_TO_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: do not wait for a FIFO's writer
# Errors caused by the file itself or its name. All other errors have causes that an operator must fix: file descriptors
# or memory are used up, a disk fails, a server does not answer, permission is missing.
_OF_THE_FILE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO}
_OF_THE_FILE |= {errno.ENAMETOOLONG, errno.EINVAL, errno.EFBIG, errno.EOVERFLOW}
_NUMBER = re.compile(r"\d+")  # numbers, such as a version's number, differ from failure to failure
_IRREGULAR = {errno.ELOOP: "a symbolic link", errno.ENXIO: "a socket or a device"}


def locked_folder(prefix: str, parent: Path) -> tuple[Path, int]:
    """Make a folder. Returns it and a descriptor that locks it while any process has the descriptor open.

    Removes this user's unlocked folders with the same prefix first, because the processes that made them were killed.
    """
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            lock = os.open(left, _TO_LIST | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):  # before it was locked, another process removed the folder
            lock = os.open(path, _TO_LIST | os.O_NOFOLLOW)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if path.exists():
                return path, lock
            os.close(lock)


@contextmanager
def aside(path: Path, *, durable: bool = False, writer: str = "") -> Iterator[BinaryIO]:
    """Open a file to write. It is renamed to `path` when the block ends, or removed if the block fails.

    With `durable` its bytes are on the disk before the rename. `writer` is a part of the temporary name. It must differ
    between writers that may write the same file at the same time.
    """
    temporary = path.with_name(f"{TEMPORARY}{writer}{path.name}")
    try:
        temporary.unlink(missing_ok=True)  # remove the file of a writer that was killed
        with temporary.open("xb") as file:  # "x" follows no link
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def keep_aside(path: Path, aside: Path) -> None:
    """Give the file or folder at `path` the name `aside`, replacing any file or folder of that name.

    A file keeps its first name, too, so that no reader finds the file missing. A folder, or a file on a file system
    without links, is renamed. Raises OSError.
    """
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside, follow_symlinks=False)
    except OSError:  # `path` is a folder, or the file system has no links
        path.rename(aside)


def names(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def lock_shared(descriptor: int) -> bool:
    """Take a shared lock on an open file; False if another process has it exclusively."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_directory(path: Path) -> None:
    """Write the names in a directory to the disk."""
    descriptor = os.open(path, _TO_LIST)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def regular(path: Path, *, folder: int | None = None) -> Iterator[int]:
    """Open a regular file for reading. Yields its descriptor. Refuses links, which could lead to another file.

    `folder` is the descriptor of its folder, if no link in the path may be followed (see `beneath`). Raises OSError if
    the file cannot be opened, CorruptCheckpointError if it is not a regular file.
    """
    try:
        descriptor = os.open(path, _TO_READ) if folder is None else os.open(path.name, _TO_READ, dir_fd=folder)
    except OSError as error:
        if error.errno in _IRREGULAR:
            raise CorruptCheckpointError(path, expected="a regular file", found=_IRREGULAR[error.errno]) from error
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            found = f"one of mode {stat.filemode(mode)}"
            raise CorruptCheckpointError(path, expected="a regular file", found=found)
        yield descriptor
    finally:
        os.close(descriptor)


def content(path: Path, *, limit: int, folder: int | None = None) -> bytes:
    """Return the content of a regular file.

    Raises the errors of `regular`, and CorruptCheckpointError above `limit` bytes.
    """
    with regular(path, folder=folder) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise CorruptCheckpointError(path, expected=f"at most {limit} bytes", found=size)
        read = b""
        while len(read) < size and (more := os.read(descriptor, size - len(read))):
            read += more
        return read


@contextmanager
def beneath(directory: Path, *parts: str) -> Iterator[int]:
    """Open a folder beneath a directory. Yields its descriptor. The directory may be a link, the parts must not be.

    Each part of the path is opened relative to the folder before it, so that nobody can replace a folder by a link
    between a check and a use. Raises OSError if a part cannot be opened, CorruptCheckpointError if a part is a link.
    """
    path = directory
    descriptor = os.open(directory, _TO_LIST)
    try:
        for part in parts:
            path /= part
            try:
                within = os.open(part, _TO_LIST | os.O_NOFOLLOW, dir_fd=descriptor)
            except OSError as error:
                with suppress(OSError):
                    os.readlink(part, dir_fd=descriptor)
                    raise CorruptCheckpointError(path, expected="a folder", found="a symbolic link") from error
                raise OSError(error.errno, error.strerror, str(path)) from error
            os.close(descriptor)
            descriptor = within
        yield descriptor
    finally:
        os.close(descriptor)


def content_beneath(directory: Path, name: str, *, limit: int) -> bytes:
    """Return the content of a regular file beneath a directory, by a name such as "folder/file".

    Raises the errors of `beneath` and `content`, and ValueError for a name that leads out of the directory.
    """
    *parts, last = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in (*parts, last)):
        raise ValueError(name)
    with beneath(directory, *parts) as descriptor:
        return content(directory.joinpath(*parts, last), limit=limit, folder=descriptor)


def is_of_the_file(error: OSError) -> bool:
    """Return whether a read failed because of the file itself. An error without errno is about the file's content."""
    return error.errno is None or error.errno in _OF_THE_FILE


def unread(path: Path, expected: str, error: OSError) -> CorruptCheckpointError | UnreadableError:
    """Return the error to raise if a required file cannot be read. `expected` describes the contents of a good file."""
    why = error.strerror or str(error)
    if is_of_the_file(error):
        return CorruptCheckpointError(path, expected=expected, found=why)
    return UnreadableError(path, why)


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Turn an OSError in this block into the error that `unread` makes."""
    try:
        yield
    except OSError as error:
        raise unread(path, expected, error) from error


def has(path: Path, expected: bytes) -> bool:
    """Return whether the path is a regular file with exactly this content."""
    try:
        return content(path, limit=len(expected)) == expected
    except (OSError, CorruptCheckpointError):
        return False


# Text that people read ----------------------------------------------------------------------------------------------


def shown(found: object) -> str:
    """Return a value from a file as one line of a message: shortened, without terminal control characters."""
    text = line(repr(found) if isinstance(found, str | bytes) else str(found))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def line(text: str) -> str:
    """Return the text on one line, safe for a terminal."""
    return harmless(" ".join(text.split()))


def harmless(text: str) -> str:
    """Return the text with characters that cannot be printed escaped, as \\x1b."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class Repeats:
    """Counts failures of one kind in a row. Texts that differ only in numbers are of one kind.

    Belongs to one thread.
    """

    def __init__(self) -> None:
        self._kind: str | None = None
        self._count = 0

    def text(self, failure: str) -> str | None:
        """Count a failure. Returns the text to log for the 1st, 10th, 100th, 1000th failure and so on, else None."""
        kind = _NUMBER.sub("#", failure)
        self._count = self._count + 1 if kind == self._kind else 1
        self._kind = kind
        if self._count == 1:
            return failure
        is_told = self._count == 10 ** (len(str(self._count)) - 1)
        return f"{failure} (failure {self._count} of this kind in a row)" if is_told else None

    def over(self) -> int:
        """Start over after a success. Returns the number of failures of the last kind."""
        count, self._kind, self._count = self._count, None, 0
        return count
