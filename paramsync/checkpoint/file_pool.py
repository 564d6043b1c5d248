"""The data files that a publisher may overwrite: retired files that nobody holds, kept mapped from use to use."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from paramsync.checkpoint.data_file import FileStamp, stamp_now
from paramsync.dtypes import Array
from paramsync.host import files, memory

SPARE = ".spare-"
SPARES = 3  # files that wait to be overwritten
MAPPED = 48  # files that stay mapped; each takes two descriptors
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}

_WASTE = 1.25  # how many times as large as needed a spare may be
_PASSES = 4  # how often a spare may be found to be of the wrong size before it is removed


class PooledFile:
    """A data file, open and mapped for writing. Others that map or read the file see what is written at once."""

    def __init__(self, file: FileIO, *, in_memory: bool) -> None:
        """Takes the file over. Pages of a file `in_memory`, once allocated, can be written forever after."""
        self._file = file  # closes itself where an interrupt comes before anybody else could
        self.descriptor = file.fileno()
        found = os.fstat(self.descriptor)
        self.inode = found.st_ino
        self.size = found.st_size
        self.content: Array = np.empty(0, np.uint8)
        self.stamp = FileStamp.of(found)
        """The stamp of this very file, whatever its name leads to, when it was last written as a whole."""
        self.known: dict[Any, Any] = {}
        """What its writer knows of pieces of the content, right as long as nobody else writes into it."""
        self._in_memory = in_memory
        self._allocated = 0
        self._mapping = mmap.mmap(self.descriptor, self.size) if self.size else None
        if self._mapping is not None:
            self.content = np.frombuffer(self._mapping, np.uint8)

    def allocate(self, start: int, stop: int) -> None:
        """Have pages for bytes that are put there next. Without, SIGBUS would say that memory has no room.

        Raises OSError where there is none. May be called by several threads.
        """
        if stop <= self._allocated or not self._in_memory:
            return
        try:
            if memory.make_writable(self.content, start, stop):
                return
        except OSError:
            os.posix_fallocate(self.descriptor, start, stop - start)  # knows better why: no room, a quota, read-only
            raise
        os.posix_fallocate(self.descriptor, start, stop - start)

    def put(self, start: int, source: Array) -> None:
        """Copy bytes to their place, which is allocated. May be called by several threads. Raises OSError."""
        stop = start + len(source)
        if self._in_memory:
            np.copyto(self.content[start:stop], source)
            return
        # No page of a disk stays writable: once written back, it may want room again, and a copy would be SIGBUS.
        while start < stop:
            start += os.pwrite(self.descriptor, source[start - stop :].data, start)

    def take_known(self) -> dict[Any, Any]:
        """The known pieces, before the file is written again: none where it changed, or lies on a disk."""
        found, self.known = self.known, {}
        return found if self._in_memory and FileStamp.of(os.fstat(self.descriptor)) == self.stamp else {}

    def note_written(self, size: int) -> None:
        """All bytes up to this size are written."""
        if self._in_memory:
            self._allocated = max(self._allocated, size)

    def free_pages(self) -> None:
        """Free the memory of a file that has no name any more, though a follower may have it mapped."""
        if self.size and not os.fstat(self.descriptor).st_nlink:
            memory.free_pages(self.content)

    def close(self) -> None:
        self.content = np.empty(0, np.uint8)
        if self._mapping is not None:
            with suppress(BufferError):  # the traceback of an error still refers to it, and unmaps it when it goes
                self._mapping.close()
            self._mapping = None
        self._file.close()
        self.descriptor = -1


@dataclass(slots=True)
class _Spare:
    """A retired file that waits to be overwritten. `passes` counts how often its size did not fit."""

    path: Path
    inode: int
    size: int
    passes: int = 0


class FilePool:
    """Retired data files on their way from one version to a later one. The publisher's thread owns the pool.

    Fresh pages are by far the most expensive part of writing into memory, so files are overwritten in place:

    1. `retire` takes a file's names away, one after the other. With the last one it becomes a spare, by rename.
    2. `writing` takes the exclusive lock of a spare, and does not wait for it: a follower holds the shared lock for
       as long as it uses the file, and the kernel drops it when the follower dies.
    3. With the lock, the name of the spare must be the only one: somebody may have made a link to keep the file.
    4. The file is overwritten. A publisher that is killed here leaves a spare.
    5. The lock is given back, and the spare is renamed to what it is now.
    6. A spare too many loses its name under the lock, and then its memory is freed.

    The race is with a follower that opened the file by a name of a version, and has yet to lock it. It locks, and then
    looks whether the name still leads to the file that it locked. If it locked before 2, then 2 fails. If it locked
    later, then it was after 1, and the name that it came by is gone for good, since no number of a version comes twice:
    it lets go of what it has not read. A server may have a spare mapped without the lock, and reads
    nothing of it before a version has the file, and it has the lock. No file that ever had a name is cut
    short.
    """

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        """Takes over the spares of an earlier publisher. Raises OSError."""
        self._directory = directory
        self._durable = durable
        # There pages once allocated stay writable; elsewhere a page that was written back may have to find room again.
        self.in_memory = memory.is_memory(directory.stat())
        """Whether all these files are."""
        self._files: dict[int, PooledFile] = {}  # by inode, those written last at the end
        names = [name for name in files.names(directory) if name.startswith(SPARE)]
        names.sort(key=age)
        found = [(directory / name, (directory / name).lstat()) for name in names]
        regular = [(path, facts) for path, facts in found if stat.S_ISREG(facts.st_mode)]
        self._spares = [_Spare(path, facts.st_ino, facts.st_size) for path, facts in regular]

    @contextmanager
    def writing(self, path: Path, size: int) -> Iterator[PooledFile]:
        """A file of that size or a little more to write, which has the name `path` when the block ends.

        Where the block fails, there is no such file. Raises OSError.
        """
        spare = self._lock_spare(size)
        aside = spare.path if spare else path.with_name(files.TEMPORARY + path.name)
        file = self._files[spare.inode] if spare else self._fresh(aside, size)
        try:
            yield file
            file.note_written(size)
            file.stamp = stamp_now(file.descriptor)
            if self._durable:
                os.fsync(file.descriptor)
            fcntl.flock(file.descriptor, fcntl.LOCK_UN)
            aside.rename(path)
        except BaseException as error:
            if spare:
                fcntl.flock(file.descriptor, fcntl.LOCK_UN)
            else:
                with suppress(OSError):  # the error that there is says more, and the file has to be closed
                    aside.unlink(missing_ok=True)
                    if isinstance(error, OSError):  # no room, perhaps: give back what there was, though it is mapped
                        os.ftruncate(file.descriptor, 0)
                file.close()
            raise
        if spare:
            self._spares.remove(spare)
        self.use(file)

    def use(self, file: PooledFile) -> None:
        """Note that a version which is being written has the file: it is the last to be unmapped."""
        if file.descriptor >= 0:
            self._files.pop(file.inode, None)
            self._files[file.inode] = file

    def retire(self, path: Path) -> None:
        """Take a data file's name away; a file that loses its last name becomes a spare. Raises OSError."""
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or not found.st_size:
            path.unlink()
            return
        spare = path.with_name(SPARE + path.name)
        self._spares.append(_Spare(spare, found.st_ino, found.st_size))  # first: an interrupt must not lose it
        path.rename(spare)

    def trim(self, keep: int = SPARES) -> None:
        """Remove useless spares and those too many, the oldest first; close what nobody needs. Raises OSError."""
        useless = [spare for spare in self._spares if spare.passes >= _PASSES]
        others = [spare for spare in self._spares if spare.passes < _PASSES]
        for spare in useless + others[: max(0, len(others) - keep)]:
            self._remove(spare)
        for file in [file for file in self._files.values() if not os.fstat(file.descriptor).st_nlink]:
            self._close(file.inode)  # a stranger removed it
        for inode in list(self._files)[: max(0, len(self._files) - MAPPED)]:
            self._close(inode)

    def close(self) -> None:
        """Unmap everything. The spares stay, for the next publisher."""
        for inode in list(self._files):
            self._close(inode)

    def _lock_spare(self, size: int) -> _Spare | None:
        """The oldest spare that is large enough and that nobody holds, locked and mapped."""
        for spare in list(self._spares):
            if not size <= spare.size <= size * _WASTE:
                spare.passes += 1
            elif self._lock(spare):
                spare.passes = 0
                return spare
        return None

    def _lock(self, spare: _Spare) -> bool:
        try:
            file = self._files.get(spare.inode) or self._open(spare)
            fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # gone, or another user's
            spare.passes = _PASSES
            return False
        try:
            found = os.fstat(file.descriptor)
            if (found.st_nlink, found.st_size, spare.path.lstat().st_ino) == (1, spare.size, found.st_ino):
                return True
        except OSError:  # a stranger removed it
            pass
        fcntl.flock(file.descriptor, fcntl.LOCK_UN)
        spare.passes = _PASSES
        return False

    def _open(self, spare: _Spare) -> PooledFile:
        file = self._mapped(FileIO(spare.path, "r+", opener=_without_following))
        if file.inode != spare.inode:
            file.close()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(spare.path))
        self._files[file.inode] = file
        return file

    def _fresh(self, aside: Path, size: int) -> PooledFile:
        """A new file, whose pages are allocated when they are written. Where there is no room, the spares make some."""
        aside.unlink(missing_ok=True)
        found = os.statvfs(self._directory)
        if found.f_blocks and found.f_bavail * found.f_frsize < size:
            self.trim(keep=0)
        file = FileIO(aside, "x+")
        try:
            file.truncate(size)
            return self._mapped(file)
        except BaseException:
            file.close()
            aside.unlink(missing_ok=True)
            raise

    def _mapped(self, file: FileIO) -> PooledFile:
        try:
            return PooledFile(file, in_memory=self.in_memory)
        except BaseException:
            file.close()
            raise

    def _remove(self, spare: _Spare) -> None:
        locked = self.in_memory and self._lock(spare)
        with suppress(FileNotFoundError):
            spare.path.unlink()
        if locked:
            self._files[spare.inode].free_pages()
        self._spares.remove(spare)
        self._close(spare.inode)

    def _close(self, inode: int) -> None:
        file = self._files.pop(inode, None)
        if file is not None:
            file.close()


def _without_following(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def age(name: str) -> tuple[int, str]:
    """Sorts names of data files, or spares, from the oldest on: the number of a version is in the name."""
    return len(name), name
