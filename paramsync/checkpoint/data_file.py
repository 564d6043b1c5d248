"""Opens data files for readers: locks them, and either maps or copies them. For writers see `FilePool`.

A shared flock belongs to the open file, not to a descriptor of it. A mapping duplicates the descriptor of the
open file, so it keeps the lock until the last array or tensor in it is gone. A dead process keeps no lock. Locking
needs no permission to write to the file or its directory.

Versions that share a file share one mapping: bringing a file into the page table is most of the cost of a restore.

A seal is a text that identifies the data files of a version as their publisher left them in this machine's memory. If
the seal is still the same, nobody wrote to the files, and their checksums need not be computed again. Files on a disk
have no seal, because a disk may return other bytes than were written. On another machine the seal differs, because
files there are copies, which may be incomplete.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, final

import numpy as np
from crc32c import crc32c

from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError
from paramsync.host import files, memory

ALIGNMENT = 64  # bytes: TensorFlow's kernels expect tensors at multiples of this

# Bytes that one call prefaults. More would block other threads longer: a thread that allocates memory waits for the
# whole call. Fewer would cost time: between two calls this thread may have to wait for the GIL.
_PREFAULTED = 32 << 20
_COPIED = 64 << 20  # bytes that one call copies
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_WHAT = "a data file"

Ranges: TypeAlias = Sequence[tuple[int, int]]
"""Ranges of bytes of a file, each with start and stop, ascending."""


class FileStamp(NamedTuple):
    """A value that differs between any two files of a file system, and changes with each write by a system call."""

    device: int
    inode: int
    size: int
    written_at: int  # nanoseconds

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def seal_of(stamps: Sequence[FileStamp], directory: Path) -> str:
    """Return the seal of a version's data files, in their order; "" if boot or file system cannot be identified.

    The seal covers the identity of the file system, because files of another file system may have the same inodes.
    """
    try:
        boot = _BOOT.read_text().strip()
        mounted = os.statvfs(directory).f_fsid
    except OSError:
        return ""
    return hashlib.sha256(repr((boot, mounted, *map(tuple, stamps))).encode()).hexdigest() if boot else ""


def open_data_file(
    path: Path,
    *,
    mapped: bool,
    frozen: Ranges | None = None,
    shared: Mapping[FileStamp, DataFile] = MappingProxyType({}),
    folder: int | None = None,
) -> DataFile | None:
    """Open and lock a data file; None while a publisher overwrites it. Raises CorruptCheckpointError, UnreadableError.

    A mapped file is used in place: if another program truncates it, this process ends with SIGBUS. With `mapped=False`,
    bytes are copied when they are first read, and later changes to the file do not matter. With `frozen`, maps an
    immutable copy of these bytes. `shared` has files that are mapped already: if the file is among them, its mapping is
    used again. `folder` is as in `files.regular`.
    """
    with files.reading(path, _WHAT), files.regular(path, folder=folder) as descriptor:
        before = shared.get(FileStamp.of(os.fstat(descriptor))) if mapped else None
        if before is not None and before.covers(frozen):
            return before.alias(path)
        return DataFile(path, descriptor, mapped=mapped, frozen=frozen) if files.lock_shared(descriptor) else None


class _OpenFile:
    """A descriptor that is closed when nothing refers to this object any more."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


def _freeze(path: Path, descriptor: int, ranges: Ranges) -> _OpenFile:
    """Copy these bytes, each to its offset, into memory that no process can change any more.

    Raises CorruptCheckpointError if the file is truncated meanwhile, UnreadableError if it cannot be read now.
    """
    frozen = _OpenFile(os.memfd_create(path.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    with files.reading(path, _WHAT):
        os.ftruncate(frozen.descriptor, _end(ranges))
        for start, stop in ranges:
            at = os.lseek(frozen.descriptor, start, os.SEEK_SET)
            while at < stop:
                count = os.sendfile(frozen.descriptor, descriptor, at, min(stop - at, _COPIED))
                if not count:
                    found = f"one of {os.fstat(descriptor).st_size} bytes"
                    raise CorruptCheckpointError(path, expected=f"a data file of {stop} bytes", found=found)
                at += count
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(frozen.descriptor, fcntl.F_ADD_SEALS, seals)
    return frozen


def _end(ranges: Ranges) -> int:
    return max((stop for _, stop in ranges), default=0)


@final
class DataFile:
    """A locked data file: mapped, or copied as its bytes are read.

    Safe to use from any thread; one thread prefaults pages.
    """

    def __init__(self, path: Path, descriptor: int, *, mapped: bool, frozen: Ranges | None = None) -> None:
        status = os.fstat(descriptor)
        self.path = path
        self.size = status.st_size if frozen is None else _end(frozen)
        self.stamp = FileStamp.of(status)
        self.is_mapped = mapped
        self.digests: dict[tuple[int, int], bytes] | None = None if frozen is None else {}
        """Digests of frozen bytes, by offset and size."""
        self._frozen = frozen
        self._copies: dict[tuple[int, int], memoryview] = {}
        self._file = _OpenFile(os.dup(descriptor)) if frozen is None else _freeze(path, descriptor, frozen)
        self._mapping: mmap.mmap | None = None
        if mapped and self.size:  # an empty file cannot be mapped
            try:
                # Writable: numpy and dlpack share no read-only memory. Private: writes must not reach the file.
                access = mmap.PROT_READ | mmap.PROT_WRITE
                self._mapping = mmap.mmap(self._file.descriptor, self.size, flags=mmap.MAP_PRIVATE, prot=access)
            except ValueError as error:  # the file was truncated after its size was read
                raise CorruptCheckpointError(path, expected="a data file at rest", found="one that was cut") from error

    def alias(self, path: Path) -> DataFile:
        """Return this mapping under another name of the file. The lock lasts until both objects are gone."""
        other = copy(self)
        other.path = path
        return other

    def covers(self, frozen: Ranges | None) -> bool:
        """Return whether this is a frozen copy with these bytes; for None, whether this is not a frozen copy."""
        if frozen is None or self._frozen is None:
            return frozen is self._frozen
        return all(any(first <= start and stop <= last for first, last in self._frozen) for start, stop in frozen)

    def lend(self) -> int:
        """Return a descriptor for another process to map.

        The lock lasts until every process has closed the descriptor and unmapped the file.
        """
        return os.dup(self._file.descriptor)

    def has_its_name(self, *, folder: int | None = None) -> bool:
        """Return whether the path still leads to this file. Raises UnreadableError if the path cannot be read now."""
        try:
            status = os.lstat(self.path) if folder is None else os.lstat(self.path.name, dir_fd=folder)
        except OSError as error:
            if files.is_of_the_file(error):
                return False
            raise files.unread(self.path, _WHAT, error) from error
        return (status.st_dev, status.st_ino) == (self.stamp.device, self.stamp.inode)

    def memory(self, offset: int, size: int) -> memoryview:
        """Return these bytes, in the same memory at each call. The view is writable, and keeps the memory alive.

        Raises CorruptCheckpointError if the file has become too short, UnreadableError if it cannot be read now.
        """
        if self.is_mapped:
            return memoryview(self._mapping or b"")[offset : offset + size]
        place = offset, size
        known = self._copies.get(place)
        # If two threads copy the same bytes at once, both return the copy that is stored first.
        return known if known is not None else self._copies.setdefault(place, self.read(offset, size))

    def read(self, offset: int, size: int) -> memoryview:
        """Return a copy of these bytes as they are now; for frozen bytes, return the mapping. Raises as `memory` does.

        The process survives if the file is truncated meanwhile.
        """
        if self.is_mapped and self._frozen is not None:
            return self.memory(offset, size)
        room = np.empty(size + ALIGNMENT, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        content = room[start : start + size].data
        done = 0
        with files.reading(self.path, _WHAT):
            while done < size:
                count = os.preadv(self._file.descriptor, [content[done:]], offset + done)
                if not count:
                    raise self._too_short(offset, size)
                done += count
        return content

    def check(self, offset: int, size: int) -> None:
        """Raise CorruptCheckpointError if the file was truncated: reading these bytes would end the process."""
        if self._mapping is not None and self._mapping.size() < offset + size:  # the size of the file now
            raise self._too_short(offset, size)

    def prefault(self, offset: int, size: int) -> None:
        """Bring these bytes of the mapping into the page table, with the GIL released.

        Raises CorruptCheckpointError if the file has become too short, UnreadableError for other reasons.
        """
        if self._mapping is None or not size:
            return
        self.check(offset, size)
        pages = self._pages()
        for start in range(offset, offset + size, _PREFAULTED):
            stop = min(start + _PREFAULTED, offset + size)
            try:
                is_done = memory.make_readable(pages, start, stop)
            except OSError as error:
                self.check(start, stop - start)  # the file may be too short; otherwise the disk or memory failed
                raise files.unread(self.path, _WHAT, error) from error
            if not is_done:
                crc32c(self.memory(start, stop - start))  # this kernel cannot prefault: read each page instead

    def is_present(self, offset: int, size: int) -> bool:
        """Return whether all these bytes are in memory already, so that the kernel reads none from a disk."""
        return self._mapping is None or not size or memory.is_present(self._pages(), offset, offset + size)

    def _pages(self) -> Array:
        return np.frombuffer(self._mapping or b"", np.uint8)

    def _too_short(self, offset: int, size: int) -> CorruptCheckpointError:
        expected = f"{size} bytes at {offset}, as when it was opened"
        return CorruptCheckpointError(self.path, expected=expected, found="a file that was cut")
