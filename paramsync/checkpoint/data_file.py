"""Data files: how readers hold them, and how a publisher overwrites those that nobody holds (see FilePool).

Versions that share a file share one mapping: bringing a file into the page table is most of what a restore takes.

A shared flock belongs to the open file, not to a descriptor of it: a mapping has its own descriptor of the same open
file, and so keeps the lock until the last array or tensor in it goes. A process that dies keeps nothing. Locking takes
no permission to write, neither to the file nor to its directory.

A seal shows whether files are as their publisher left them: in this machine's memory, and not written to since. Then
their bytes are those whose checksums the publisher computed, and computing them again shows nothing new. A disk may
give back other bytes than it was given, and another machine may have copied half of them: neither has a seal.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy as copy_of
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from crc32c import crc32c

from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError
from paramsync.host import files, memory

# Bytes that are prefaulted at once: other threads that allocate memory wait for one portion, and between two of them
# this thread waits for the GIL, and others for this thread.
_PREFAULTED = 32 << 20
ALIGNMENT = 64  # bytes: TensorFlow's kernels expect it of the address of a tensor
SPARE = ".spare-"
SPARES = 3  # files that wait to be overwritten
MAPPED = 48  # files that stay mapped for writing; each takes two descriptors
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_WASTE = 1.25  # how many times as large as needed a spare may be
_COPIED = 64 << 20  # bytes that one call copies
_PASSES = 4  # how often a spare may be found to be of the wrong size before it is removed

FileId = tuple[int, int]
"""Device and inode, which tell a file from all others."""


class FileStamp(NamedTuple):
    """Tells a file from all others of its file system, and from itself once it is written to."""

    device: int
    inode: int
    size: int
    written_at: int  # nanoseconds

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    @property
    def file_id(self) -> FileId:
        return self.device, self.inode


def stamp_now(descriptor: int) -> FileStamp:
    """Set the file's time of writing to now: writing through a mapping does not do so."""
    now = time.time_ns()
    try:
        os.utime(descriptor, ns=(now, now))
    except PermissionError:  # somebody else's file, which we may write: its time is the kernel's then
        os.utime(descriptor)
    return FileStamp.of(os.fstat(descriptor))


def seal_of(stamps: Sequence[FileStamp], directory: Path) -> str:
    """The seal of a version's data files, in their order, in this directory; "" where this machine says not enough.

    The file system has an identity of its own since it was mounted: another one counts inodes from one, too.
    """
    try:
        boot = _BOOT.read_text().strip()
        mounted = os.statvfs(directory).f_fsid
    except OSError:
        return ""
    return hashlib.sha256(repr((boot, mounted, *map(tuple, stamps))).encode()).hexdigest() if boot else ""


class _OpenFile:
    """A descriptor that is closed with the last that refers to this."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


Ranges: TypeAlias = Sequence[tuple[int, int]]
"""Starts and stops of bytes of a file, ascending."""


def _sealed(path: Path, descriptor: int, ranges: Ranges) -> _OpenFile:
    """A copy of these bytes of a file, where they are, in memory that nobody can change any more, whoever has it.

    Raises CorruptCheckpointError where the file is cut meanwhile, UnreadableError where it cannot be read now.
    """
    copy = _OpenFile(os.memfd_create(path.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        os.ftruncate(copy.descriptor, _end(ranges))
        for start, stop in ranges:
            at = os.lseek(copy.descriptor, start, os.SEEK_SET)
            while at < stop:
                count = os.sendfile(copy.descriptor, descriptor, at, min(stop - at, _COPIED))
                if not count:
                    found = f"one of {os.fstat(descriptor).st_size} bytes"
                    raise CorruptCheckpointError(path, expected=f"a data file of {stop} bytes", found=found)
                at += count
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(copy.descriptor, fcntl.F_ADD_SEALS, seals)
    except OSError as error:
        raise files.unread(path, "a data file", error) from error
    return copy


def _end(ranges: Ranges) -> int:
    return max((stop for _, stop in ranges), default=0)


FindMapped: TypeAlias = "Callable[[os.stat_result], DataFile | None]"
"""Gives the file with these facts, if it is mapped already, for the caller to hold."""


def hold(
    path: Path,
    *,
    mapped: bool,
    sealed: Ranges | None = None,
    find: FindMapped | None = None,
    folder: int | None = None,
) -> DataFile | None:
    """Open and lock a data file; None where somebody is overwriting it. Raises CorruptCheckpointError, UnreadableError.

    A mapped file is used where it lies: whoever truncates it then ends this process with SIGBUS. Otherwise bytes are
    copied when they are first asked for, and later changes to the file do not matter. A file that `find` gives is
    mapped already, and is held in that mapping. `folder` is as in `files.regular`. With `sealed`, a copy of these
    bytes is mapped: nobody can change it, nor has a lock on the file to wait for.
    """
    try:
        with files.regular(path, folder=folder) as descriptor:
            there = find(os.fstat(descriptor)) if mapped and find is not None else None
            if there is not None and there.has(sealed):
                return there.hold(path)
            return DataFile(path, descriptor, mapped=mapped, sealed=sealed) if files.lock_shared(descriptor) else None
    except OSError as error:
        raise files.unread(path, "a data file", error) from error


@final
class DataFile:
    """A data file, mapped, or copied as its bytes are asked for. Of a copy nothing is ever cut, absent, or let go.

    Safe to use from any thread; one thread brings pages in and drops them.
    """

    def __init__(self, path: Path, descriptor: int, *, mapped: bool, sealed: Ranges | None = None) -> None:
        status = os.fstat(descriptor)
        self.path = path
        self.size = status.st_size if sealed is None else _end(sealed)
        self.stamp = FileStamp.of(status)
        self.is_mapped = mapped
        self._mapping: mmap.mmap | None = None  # nor of an empty file, which cannot be mapped
        self._copies: dict[tuple[int, int], memoryview] = {}
        self._ranges = sealed
        self.digests: dict[tuple[int, int], bytes] | None = None if sealed is None else {}
        """What is known of the bytes at offset and size, as long as nobody can change them."""
        self._sealed = None if sealed is None else _sealed(path, descriptor, sealed)
        if self._sealed is not None:
            descriptor = self._sealed.descriptor
        if not mapped:
            self._descriptor = os.dup(descriptor)
        elif self.size:
            try:
                # Private and writable: numpy and dlpack share nothing that is read-only. A write stays in this process.
                self._mapping = mmap.mmap(
                    descriptor, self.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
                )
            except ValueError as error:  # it was cut after its size was read
                raise CorruptCheckpointError(path, expected="a data file at rest", found="one that was cut") from error

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def hold(self, path: Path) -> DataFile:
        """A mapped file under another name: in the same memory, and locked for as long as either is in use."""
        same = copy_of(self)
        same.path = path
        return same

    def has(self, sealed: Ranges | None) -> bool:
        """Whether it is a copy that has these bytes; None stands for the file itself."""
        if sealed is None or self._ranges is None:
            return sealed is self._ranges
        return all(any(first <= start and stop <= last for first, last in self._ranges) for start, stop in sealed)

    def lend(self) -> int:
        """A descriptor of the file with a lock of its own, for another process to map; of the copy where it is sealed.

        Raises CorruptCheckpointError where its name leads elsewhere by now, UnreadableError.
        """
        if self._sealed is not None:
            return os.dup(self._sealed.descriptor)
        try:
            with files.regular(self.path) as descriptor:
                stamp = FileStamp.of(os.fstat(descriptor))
                if stamp.file_id == self.stamp.file_id and files.lock_shared(descriptor):
                    return os.dup(descriptor)
        except OSError as error:
            raise files.unread(self.path, "a data file", error) from error
        raise CorruptCheckpointError(self.path, expected="the file that was opened", found="another one")

    def has_its_name(self, *, folder: int | None = None) -> bool:
        """Whether the path still leads to this file. Raises UnreadableError where nobody can tell now."""
        try:
            status = os.lstat(self.path) if folder is None else os.lstat(self.path.name, dir_fd=folder)
        except OSError as error:
            if files.is_of_the_file(error):
                return False
            raise files.unread(self.path, "a data file", error) from error
        return (status.st_dev, status.st_ino) == self.stamp.file_id

    def memory(self, offset: int, size: int) -> memoryview:
        """These bytes of the file, the same at each call. They are writable, and keep the memory they lie in alive.

        Raises CorruptCheckpointError where the file has become too short, UnreadableError where it cannot be read now.
        """
        if self.is_mapped:
            return memoryview(self._mapping or b"")[offset : offset + size]
        place = offset, size
        copy = self._copies.get(place)
        # Two threads may copy the same bytes at once: the first one's copy is the one to check and to use.
        return copy if copy is not None else self._copies.setdefault(place, self.read(offset, size))

    def read(self, offset: int, size: int) -> memoryview:
        """These bytes as they are now; nothing is kept for another call. Raises as `memory` does."""
        if self.is_mapped:
            self.check(offset, size)
            return self.memory(offset, size)
        room = np.empty(size + ALIGNMENT, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        copy = room[start : start + size].data
        done = 0
        while done < size:
            try:
                count = os.preadv(self._descriptor, [copy[done:]], offset + done)
            except OSError as error:
                raise files.unread(self.path, "a data file", error) from error
            if not count:
                raise self._too_short(offset, size)
            done += count
        return copy

    def check(self, offset: int, size: int) -> None:
        """Raise CorruptCheckpointError where reading these bytes of some `memory` would end the process."""
        if self._mapping is not None and self._mapping.size() < offset + size:  # of the file, as it is now
            raise self._too_short(offset, size)

    def prefault(self, offset: int, size: int) -> None:
        """Bring these bytes of some `memory` into the page table, with the GIL released.

        Raises CorruptCheckpointError where the file has become too short, UnreadableError for other reasons.
        """
        if self._mapping is None or not size:
            return
        self.check(offset, size)
        for at in range(offset, offset + size, _PREFAULTED):
            length = min(_PREFAULTED, offset + size - at)
            if not self._populate(at, length):
                crc32c(self.memory(at, length))  # an older kernel: each page is there once it was read

    def is_present(self, offset: int, size: int) -> bool:
        """Whether none of these bytes of some `memory` would be read from a disk now, as far as the kernel tells."""
        return self._mapping is None or not size or memory.is_present(self._pages(), offset, offset + size)

    def _pages(self) -> Array:
        return np.frombuffer(self._mapping or b"", np.uint8)

    def _populate(self, offset: int, size: int) -> bool:
        try:
            return memory.make_readable(self._pages(), offset, offset + size)
        except OSError as error:
            self.check(offset, size)  # behind the end of the file is no page; else the disk, or the memory, has failed
            raise files.unread(self.path, "a data file", error) from error

    def _too_short(self, offset: int, size: int) -> CorruptCheckpointError:
        expected = f"{size} bytes at {offset}, as when it was opened"
        return CorruptCheckpointError(self.path, expected=expected, found="a file that was cut")


class PooledFile:
    """A data file, open and mapped for writing. Others that map or read the file see what is written at once."""

    def __init__(self, path: Path, file: FileIO, *, in_memory: bool) -> None:
        """Takes the open file over. Pages of a file `in_memory`, once allocated, can be written forever after."""
        self.path = path
        """Its name as long as it waits: that of a spare, or a temporary one."""
        self._file = file  # closes itself where an interrupt comes before anybody else could
        self.descriptor = file.fileno()
        status = os.fstat(self.descriptor)
        self.inode = status.st_ino
        self.size = status.st_size
        self.content: Array = np.empty(0, np.uint8)
        self.stamp = FileStamp.of(status)
        """The stamp of this very file, whatever its name leads to, when it was last written as a whole."""
        self.known: dict[Any, Any] = {}
        """What its writer knows of pieces of the content, right as long as nobody else writes into it."""
        self.passes = 0
        """How often the file was not of the size that was needed, since it became a spare."""
        self._in_memory = in_memory
        self._allocated = 0
        try:
            self._mapping = mmap.mmap(self.descriptor, self.size) if self.size else None
        except BaseException:
            file.close()
            raise
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
        known, self.known = self.known, {}
        return known if self._in_memory and FileStamp.of(os.fstat(self.descriptor)) == self.stamp else {}

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
        self._spares: list[PooledFile] = []  # those of them that may be overwritten, the oldest first
        for name in sorted((name for name in files.names(directory) if name.startswith(SPARE)), key=_age):
            if stat.S_ISREG((directory / name).lstat().st_mode):
                self._add_spare(directory / name, directory / name)

    @contextmanager
    def writing(self, path: Path, size: int) -> Iterator[PooledFile]:
        """A file of that size or a little more to write, which has the name `path` when the block ends.

        Where the block fails, there is no such file. Raises OSError.
        """
        spare = self._lock_spare(size)
        file = spare or self._fresh(path.with_name(files.TEMPORARY + path.name), size)
        try:
            yield file
            file.note_written(size)
            file.stamp = stamp_now(file.descriptor)
            if self._durable:
                os.fsync(file.descriptor)
            fcntl.flock(file.descriptor, fcntl.LOCK_UN)
            file.path.rename(path)
        except BaseException as error:
            if spare:
                fcntl.flock(file.descriptor, fcntl.LOCK_UN)
            else:
                with suppress(OSError):  # the error that there is says more, and the file has to be closed
                    file.path.unlink(missing_ok=True)
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
            status = path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or not status.st_size:
            path.unlink()
            return
        spare = path.with_name(SPARE + path.name)
        if self._add_spare(path, spare):  # first: an interrupt must not lose it
            path.rename(spare)

    def trim(self, keep: int = SPARES) -> None:
        """Remove useless spares and those too many, the oldest first; close what nobody needs. Raises OSError."""
        useless = [spare for spare in self._spares if spare.passes >= _PASSES]
        others = [spare for spare in self._spares if spare.passes < _PASSES]
        for spare in useless + others[: max(0, len(others) - keep)]:
            locked = self.in_memory and self._lock(spare)
            spare.path.unlink(missing_ok=True)
            if locked:
                spare.free_pages()
            self._spares.remove(spare)
            self._close(spare)
        in_use = [file for file in self._files.values() if file not in self._spares]
        for at, file in enumerate(in_use):
            if at < len(in_use) - MAPPED or not os.fstat(file.descriptor).st_nlink:  # a stranger removed it
                self._close(file)

    def close(self) -> None:
        """Unmap everything. The spares stay, for the next publisher."""
        for file in list(self._files.values()):
            self._close(file)

    def _add_spare(self, path: Path, name: Path) -> bool:
        """Note a file, which is to have this name, as a spare. One that cannot be opened is removed; then False."""
        try:
            file = self._files.get(path.lstat().st_ino) or PooledFile(
                name, FileIO(path, "r+", opener=_without_following), in_memory=self.in_memory
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
        """The oldest spare that is large enough and that nobody holds, locked."""
        for spare in self._spares:
            if not size <= spare.size <= size * _WASTE:
                spare.passes += 1
            elif self._lock(spare):
                spare.passes = 0
                return spare
        return None

    def _lock(self, spare: PooledFile) -> bool:
        """Lock a spare that nobody holds. One that is not what it was is of no use any more."""
        try:
            fcntl.flock(spare.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        with suppress(OSError):  # a stranger removed it
            status = os.fstat(spare.descriptor)
            if (status.st_nlink, status.st_size, spare.path.lstat().st_ino) == (1, spare.size, spare.inode):
                return True
        fcntl.flock(spare.descriptor, fcntl.LOCK_UN)
        spare.passes = _PASSES
        return False

    def _fresh(self, aside: Path, size: int) -> PooledFile:
        """A new file, whose pages are allocated when they are written. Where there is no room, the spares make some."""
        aside.unlink(missing_ok=True)
        disk = os.statvfs(self._directory)
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < size:
            self.trim(keep=0)
        file = FileIO(aside, "x+")
        try:
            file.truncate(size)
            return PooledFile(aside, file, in_memory=self.in_memory)
        except BaseException:
            file.close()
            aside.unlink(missing_ok=True)
            raise

    def _close(self, file: PooledFile) -> None:
        self._files.pop(file.inode, None)
        file.close()


def _without_following(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _age(name: str) -> tuple[int, str]:
    """Sorts names of spares from the oldest on: the number of a version is in the name."""
    return len(name), name
