"""FilePool: data files of removed versions, which a publisher overwrites once no follower uses them."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from paramsync.checkpoint.data_file import FileStamp
from paramsync.dtypes import Array
from paramsync.host import files, memory

SPARE = ".spare-"
SPARES = 3  # how many files may wait to be overwritten
MAPPED = 48  # files that stay mapped for writing; each takes two descriptors
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}

_WASTE = 1.25  # a spare file is reused if it is at most this many times as large as needed
_PASSES = 4  # how often a spare may be of the wrong size before it is removed


class FilePool:
    """Reuses the data files of removed versions for new versions. The publisher's thread owns the pool.

    Fresh pages are by far the most expensive part of writing into memory, so files are overwritten in place:

    1. `retire` removes one name of a file. If the file has no other name, `retire` renames it to a spare's name
       instead.
    2. `writing` takes the exclusive lock of a spare without waiting: a follower has the shared lock for as long as it
       uses the file, and the kernel drops that lock when the follower dies.
    3. Once locked, the file must have no name but the spare's, because a user may have linked the file to keep it.
    4. The file is overwritten. A publisher that is killed here leaves a spare.
    5. The file is unlocked, and renamed to its new name.
    6. The name of a surplus spare is removed under the lock; then its memory is freed.

    A follower may have opened the file by a version's name before step 1, and lock it only later. After locking, the
    follower checks that the name still leads to the locked file. If the follower locks before step 2, step 2 fails. If
    the follower locks after step 2, step 1 has already removed the name for good, because no version number is used
    twice. The follower notices this and closes the file unread.

    A server may have a spare mapped without the lock. It reads nothing of the spare until a version uses the file again
    and the server has the lock. A file that ever had a version's name is never truncated.
    """

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        """Take over the spares of an earlier publisher. Raises OSError."""
        self._directory = directory
        self._durable = durable
        self.in_memory = memory.is_memory(directory.stat())
        """Whether the files are on tmpfs, where an allocated page can always be written."""
        self._files: dict[int, PooledFile] = {}  # by inode; the file that was used last comes last
        self._spares: list[PooledFile] = []  # the files that are spares, the oldest first
        for name in sorted((name for name in files.names(directory) if name.startswith(SPARE)), key=_age):
            if stat.S_ISREG((directory / name).lstat().st_mode):
                self._add_spare(directory / name, directory / name)

    @contextmanager
    def writing(self, path: Path, size: int) -> Iterator[PooledFile]:
        """Yield a file to write, of this size or a little larger. The file is renamed to `path` when the block ends.

        If the block fails, no file is renamed. Raises OSError.
        """
        spare = self._lock_spare(size)
        file = spare or self._create(path.with_name(files.TEMPORARY + path.name), size)
        try:
            yield file
            file.finish(size)
            if self._durable:
                os.fsync(file.descriptor)
            fcntl.flock(file.descriptor, fcntl.LOCK_UN)
            file.path.rename(path)
        except BaseException as error:
            if spare:
                fcntl.flock(file.descriptor, fcntl.LOCK_UN)
            else:
                with suppress(OSError):  # the first error is raised; the file must be closed in any case
                    file.path.unlink(missing_ok=True)
                    if isinstance(error, OSError):  # perhaps no room: free the bytes, even of mapped files
                        os.ftruncate(file.descriptor, 0)
                file.close()
            raise
        if spare:
            self._spares.remove(spare)
        self.use(file)

    def use(self, file: PooledFile) -> None:
        """Note that the version being written uses this file, so that the file is unmapped last."""
        if file.descriptor >= 0:
            self._files.pop(file.inode, None)
            self._files[file.inode] = file

    def retire(self, path: Path) -> None:
        """Remove a data file's name; a file that loses its last name becomes a spare. Raises OSError."""
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or not status.st_size:
            path.unlink()
            return
        spare = path.with_name(SPARE + path.name)
        if self._add_spare(path, spare):  # added before the rename, so that an interrupt does not lose the file
            path.rename(spare)

    def trim(self, keep: int = SPARES) -> None:
        """Remove useless spares and the oldest surplus spares; close unneeded files. Raises OSError."""
        useless = [spare for spare in self._spares if spare.passes >= _PASSES]
        others = [spare for spare in self._spares if spare.passes < _PASSES]
        for spare in useless + others[: max(0, len(others) - keep)]:
            locked = self.in_memory and self._lock(spare)
            spare.path.unlink(missing_ok=True)
            if locked and spare.is_unnamed():  # a follower may still have the file mapped
                memory.free_pages(spare.content)
            self._spares.remove(spare)
            self._close(spare)
        in_use = [file for file in self._files.values() if file not in self._spares]
        for at, file in enumerate(in_use):
            if at < len(in_use) - MAPPED or file.is_unnamed():  # unnamed: another program removed the file
                self._close(file)

    def close(self) -> None:
        """Unmap everything. The spares stay, for the next publisher."""
        for file in list(self._files.values()):
            self._close(file)

    def _add_spare(self, path: Path, name: Path) -> bool:
        """Add a file to the spares; the caller renames it to `name`.

        If the file cannot be opened, removes the file and returns False.
        """
        try:
            file = self._files.get(path.lstat().st_ino) or PooledFile(
                name, FileIO(path, "r+", opener=_open_without_following), in_memory=self.in_memory
            )
        except OSError:
            path.unlink(missing_ok=True)
            return False
        file.path, file.passes = name, 0
        self._files[file.inode] = file
        if file not in self._spares:
            self._spares.append(file)
        return True

    def _lock_spare(self, size: int) -> PooledFile | None:
        """Lock the oldest spare that is large enough and that nobody uses."""
        for spare in self._spares:
            if not size <= spare.size <= size * _WASTE:
                spare.passes += 1
            elif self._lock(spare):
                spare.passes = 0
                return spare
        return None

    def _lock(self, spare: PooledFile) -> bool:
        """Lock a spare that nobody uses. A spare that another program changed becomes useless."""
        try:
            fcntl.flock(spare.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        with suppress(OSError):  # another program removed the file
            status = os.fstat(spare.descriptor)
            if (status.st_nlink, status.st_size, spare.path.lstat().st_ino) == (1, spare.size, spare.inode):
                return True
        fcntl.flock(spare.descriptor, fcntl.LOCK_UN)
        spare.passes = _PASSES
        return False

    def _create(self, path: Path, size: int) -> PooledFile:
        """Create a file, whose pages are allocated when they are written. If there is no room, remove spares."""
        path.unlink(missing_ok=True)
        disk = os.statvfs(self._directory)
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < size:
            self.trim(keep=0)
        file = FileIO(path, "x+")
        try:
            file.truncate(size)
            return PooledFile(path, file, in_memory=self.in_memory)
        except BaseException:
            file.close()
            path.unlink(missing_ok=True)
            raise

    def _close(self, file: PooledFile) -> None:
        self._files.pop(file.inode, None)
        file.close()


class PooledFile:
    """A data file, open and mapped for writing. Other processes that map or read the file see each write at once."""

    def __init__(self, path: Path, file: FileIO, *, in_memory: bool) -> None:
        """Take over the open file. `path` is a spare's name, or a temporary name."""
        self.path = path
        self._file = file  # a FileIO closes its file even if an interrupt prevents `close`
        self.descriptor = file.fileno()
        status = os.fstat(self.descriptor)
        self.inode = status.st_ino
        self.size = status.st_size
        self.content: Array = np.empty(0, np.uint8)
        self.stamp = FileStamp.of(status)
        """The stamp of the open file after its last write. The file's name may lead to another file by now."""
        self.known: dict[Any, Any] = {}
        """The findings of the last write by piece, see `tensor_bytes`. Valid until another program writes the file."""
        self.passes = 0
        """How often the file was of the wrong size since it became a spare."""
        self._in_memory = in_memory
        self._allocated = 0
        try:
            if self.size:
                self.content = np.frombuffer(mmap.mmap(self.descriptor, self.size), np.uint8)
        except BaseException:
            file.close()
            raise

    def allocate(self, start: int, stop: int) -> None:
        """Allocate pages for the next bytes to write. Otherwise a write into full memory ends in SIGBUS.

        Raises OSError if there is no room. May be called by several threads.
        """
        if stop <= self._allocated or not self._in_memory:
            return
        try:
            if memory.make_writable(self.content, start, stop):
                return
        except OSError:
            # raises an error with the reason: no room, quota or read-only
            os.posix_fallocate(self.descriptor, start, stop - start)
            raise
        os.posix_fallocate(self.descriptor, start, stop - start)

    def put(self, start: int, source: Array) -> None:
        """Copy bytes into the file. Their pages must be allocated. May be called by several threads. Raises OSError."""
        stop = start + len(source)
        if self._in_memory:
            np.copyto(self.content[start:stop], source)
            return
        # A page of a file on a disk may need room again after it was written back. Copying into the mapping could then
        # end in SIGBUS.
        while start < stop:
            start += os.pwrite(self.descriptor, source[start - stop :].data, start)

    @contextmanager
    def places(self, ranges: Sequence[tuple[int, int]]) -> Iterator[Sequence[Array]]:
        """Yield an array for each of these ranges of the file, for the caller to fill. Raises OSError.

        The pages of the ranges must be allocated. May be called by several threads.
        """
        if self._in_memory:
            yield [self.content[start:stop] for start, stop in ranges]
            return
        drafts = [np.empty(stop - start, np.uint8) for start, stop in ranges]
        yield drafts
        for (start, _), draft in zip(ranges, drafts, strict=True):
            self.put(start, draft)

    def take_known(self) -> dict[Any, Any]:
        """Return the findings of the last write and forget them. Call this before the file is written again.

        Returns {} if another program changed the file, or if the file is on a disk.
        """
        known, self.known = self.known, {}
        return known if self._in_memory and FileStamp.of(os.fstat(self.descriptor)) == self.stamp else {}

    def finish(self, size: int) -> None:
        """Set the file's time after `size` bytes were written: a write through a mapping does not set the time."""
        if self._in_memory:
            self._allocated = max(self._allocated, size)
        now = time.time_ns()
        try:
            os.utime(self.descriptor, ns=(now, now))
        except PermissionError:  # another user's file, which we may write: only the kernel may set its time
            os.utime(self.descriptor)
        self.stamp = FileStamp.of(os.fstat(self.descriptor))

    def is_unnamed(self) -> bool:
        return not os.fstat(self.descriptor).st_nlink

    def close(self) -> None:
        self.content = np.empty(0, np.uint8)  # unmaps the file
        self._file.close()
        self.descriptor = -1


def _open_without_following(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _age(name: str) -> tuple[int, str]:
    """Return the key that sorts names of spares, oldest first. Each name contains the number of a version."""
    return len(name), name
