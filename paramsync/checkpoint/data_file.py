"""Data files that a reader holds: no publisher overwrites a file as long as anything of it is in use.

Versions that share a file share one mapping: bringing a file into the page table is most of what a restore takes.

A shared flock belongs to the open file, not to a descriptor of it: a mapping has its own descriptor of the same open
file, and so keeps the lock until the last array or tensor in it goes. A process that dies keeps nothing. Locking takes
no permission to write, neither to the file nor to its directory.

A seal shows whether files are as their publisher left them: in this machine's memory, and not written to since. Then
their bytes are those whose checksums the publisher computed, and computing them again shows nothing new. A disk may
give back other bytes than it was given, and another machine may have copied half of them: neither has a seal.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from collections.abc import Callable, Sequence
from copy import copy as copy_of
from pathlib import Path
from typing import NamedTuple, TypeAlias, final

import numpy as np
from crc32c import crc32c

from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError
from paramsync.host import files, memory

# Bytes that are prefaulted at once: other threads that allocate memory wait for one portion, and between two of them
# this thread waits for the GIL, and others for this thread.
PORTION = 32 << 20
ALIGNMENT = 64  # bytes: TensorFlow's kernels expect it of the address of a tensor
_BOOT = Path("/proc/sys/kernel/random/boot_id")

FileId = tuple[int, int]
"""Device and inode, which tell a file from all others."""


class FileStamp(NamedTuple):
    """Tells a file from all others of its file system, and from itself once it is written to."""

    device: int
    inode: int
    size: int
    written_at: int  # nanoseconds

    @classmethod
    def of(cls, found: os.stat_result) -> FileStamp:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

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


FindMapped: TypeAlias = "Callable[[os.stat_result], DataFile | None]"
"""Gives the file with these facts, if it is mapped already, for the caller to hold."""


def hold(path: Path, *, mapped: bool, find: FindMapped | None = None, folder: int | None = None) -> DataFile | None:
    """Open and lock a data file; None where somebody is overwriting it. Raises CorruptCheckpointError, UnreadableError.

    A mapped file is used where it lies: whoever truncates it then ends this process with SIGBUS. Otherwise bytes are
    copied when they are first asked for, and later changes to the file do not matter. A file that `find` gives is
    mapped already, and is held in that mapping. `folder` is as in `files.regular`.
    """
    try:
        with files.regular(path, folder=folder) as descriptor:
            if mapped and find is not None and (there := find(os.fstat(descriptor))) is not None:
                return there.hold(path)
            return DataFile(path, descriptor, mapped=mapped) if files.lock_shared(descriptor) else None
    except OSError as error:
        raise files.unread(path, "a data file", error) from error


@final
class DataFile:
    """A data file, mapped, or copied as its bytes are asked for. Of a copy nothing is ever cut, absent, or let go.

    Safe to use from any thread; one thread brings pages in and drops them.
    """

    def __init__(self, path: Path, descriptor: int, *, mapped: bool) -> None:
        found = os.fstat(descriptor)
        self.path = path
        self.size = found.st_size
        self.stamp = FileStamp.of(found)
        self.is_mapped = mapped
        self._mapping: mmap.mmap | None = None  # nor of an empty file, which cannot be mapped
        self._present: list[tuple[int, int]] = []  # mapped ranges that were brought in, shared by all names of the file
        self._copies: dict[tuple[int, int], memoryview] = {}
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

    def lend(self) -> int:
        """A descriptor of the file with a lock of its own, for another process to map.

        Raises CorruptCheckpointError where its name leads elsewhere by now, UnreadableError.
        """
        try:
            with files.regular(self.path) as descriptor:
                found = FileStamp.of(os.fstat(descriptor))
                if found.file_id == self.stamp.file_id and files.lock_shared(descriptor):
                    return os.dup(descriptor)
        except OSError as error:
            raise files.unread(self.path, "a data file", error) from error
        raise CorruptCheckpointError(self.path, expected="the file that was opened", found="another one")

    def has_its_name(self, *, folder: int | None = None) -> bool:
        """Whether the path still leads to this file. Raises UnreadableError where nobody can tell now."""
        try:
            found = os.lstat(self.path) if folder is None else os.lstat(self.path.name, dir_fd=folder)
        except OSError as error:
            if files.is_of_the_file(error):
                return False
            raise files.unread(self.path, "a data file", error) from error
        return (found.st_dev, found.st_ino) == self.stamp.file_id

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
        was = any(first <= offset and offset + size <= last for first, last in self._present)
        if was and self.is_present(offset, size):
            return  # asking again takes half as long; dropped pages that are in the page cache again are soon back
        for at in range(offset, offset + size, PORTION):
            length = min(PORTION, offset + size - at)
            if not self._populate(at, length):
                crc32c(self.memory(at, length))  # an older kernel: each page is there once it was read
        self._note(offset, size)

    def is_present(self, offset: int, size: int) -> bool:
        """Whether none of these bytes of some `memory` would be read from a disk now, as far as the kernel tells."""
        return self._mapping is None or not size or memory.is_present(self._pages(), offset, offset + size)

    def let_pages_go(self) -> None:
        """Take every `memory` of a mapped file out of this process's page table; a reader has it again.

        Others that hold the file in the same memory are affected too. The bytes come from the file again: nobody may
        have written to a `memory`. A copy stays: the same advice to the kernel would fill it with zeros.
        """
        if self._mapping is not None:
            self._present.clear()
            memory.drop_pages(self._pages())

    def _pages(self) -> Array:
        return np.frombuffer(self._mapping or b"", np.uint8)

    def _note(self, start: int, size: int) -> None:
        stop = start + size
        if self._present and self._present[-1][1] == start:
            start = self._present[-1][0]
        self._present[:] = [known for known in self._present if known[0] < start or known[1] > stop]
        self._present.append((start, stop))

    def _populate(self, offset: int, size: int) -> bool:
        try:
            return memory.make_readable(self._pages(), offset, offset + size)
        except OSError as error:
            self.check(offset, size)  # behind the end of the file is no page; else the disk, or the memory, has failed
            raise files.unread(self.path, "a data file", error) from error

    def _too_short(self, offset: int, size: int) -> CorruptCheckpointError:
        expected = f"{size} bytes at {offset}, as when it was opened"
        return CorruptCheckpointError(self.path, expected=expected, found="a file that was cut")
