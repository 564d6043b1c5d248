"""Data files that a reader holds: no publisher overwrites a file as long as anything of it is in use.

Versions that share a file share one mapping: bringing a file into the page table is most of what a restore takes.

A shared flock belongs to the open file, not to a descriptor of it: a mapping has its own descriptor of the same open
file, and so keeps the lock until the last array or tensor in it goes. A process that dies keeps nothing. Locking takes
no permission to write, neither to the file nor to its directory.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy as copy_of
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, final

import numpy as np

from paramsync.checkpoint.placement import ALIGNMENT
from paramsync.checkpoint.seal import FileId, FileStamp
from paramsync.errors import CorruptCheckpointError
from paramsync.host import files, kernel, memory
from paramsync.host.kernel import Facts
from paramsync.tensorbundle.checksums import crc32c

# Bytes at once: other threads that allocate memory wait for one portion, and between two of them this thread waits for
# the GIL, and others for this thread.
PORTION = 32 << 20


@dataclass(frozen=True, slots=True)
class FileRanges:
    """A data file, and the ranges of it, from and to, that hold certain tensors."""

    file_id: FileId
    size: int
    ranges: list[tuple[int, int]] = field(default_factory=list)


class DataFile(ABC):
    """A data file that nobody overwrites. Safe to use from any thread; one thread brings pages in and drops them."""

    def __init__(self, path: Path, descriptor: int) -> None:
        found = kernel.of(path).of_descriptor(descriptor)
        self.path = path
        self.size = found.st_size
        self.stamp = FileStamp.of(found)

    def has_its_name(self) -> bool:
        """Whether the path still leads to this file. Raises UnreadableError where nobody can tell now."""
        try:
            found = kernel.of(self.path).of_name(self.path.parent, self.path.name)
        except OSError as error:
            if files.is_of_the_file(error):
                return False
            raise files.unread(self.path, "a data file", error) from error
        return (found.st_dev, found.st_ino) == self.stamp.file_id

    @abstractmethod
    def memory(self, offset: int, size: int) -> memoryview:
        """These bytes of the file, the same at each call. They are writable, and keep the memory they lie in alive.

        Raises CorruptCheckpointError where the file has become too short, UnreadableError where it cannot be read now.
        """

    @abstractmethod
    def read(self, offset: int, size: int) -> memoryview:
        """These bytes as they are now; nothing is kept for another call. Raises as `memory` does."""

    @abstractmethod
    def check(self, offset: int, size: int) -> None:
        """Raise CorruptCheckpointError where reading these bytes of some `memory` would end the process."""

    @abstractmethod
    def prefault(self, offset: int, size: int) -> None:
        """Bring these bytes of some `memory` into the page table, with the GIL released.

        Raises CorruptCheckpointError where the file has become too short, UnreadableError for other reasons.
        """

    @abstractmethod
    def is_present(self, offset: int, size: int) -> bool:
        """Whether none of these bytes of some `memory` would be read from a disk now, as far as the kernel tells."""

    @abstractmethod
    def let_pages_go(self) -> None:
        """Take every `memory` of a mapped file out of this process's page table; a reader has it again.

        Others that hold the file in the same memory are affected too. The bytes come from the file again: nobody may
        have written to a `memory`. A copy stays.
        """

    def _too_short(self, offset: int, size: int) -> CorruptCheckpointError:
        expected = f"{size} bytes at {offset}, as when it was opened"
        return CorruptCheckpointError(self.path, expected=expected, found="a file that was cut")


class Holdable(Protocol):
    """A data file that is mapped already."""

    def hold(self, path: Path) -> DataFile | None:
        """The same memory, held under a name that the file has now; None where somebody is overwriting the file.

        Raises OSError.
        """


FindMapped: TypeAlias = "Callable[[Facts], Holdable | None]"
"""Gives the file with these facts, if it is mapped already, for the caller to hold."""


def hold(path: Path, *, mapped: bool, find: FindMapped | None = None) -> DataFile | None:
    """Open and lock a data file; None where somebody is overwriting it. Raises CorruptCheckpointError, UnreadableError.

    A mapped file is used where it lies: whoever truncates it then ends this process with SIGBUS. Otherwise bytes are
    copied when they are first asked for, and later changes to the file do not matter. A file that `find` gives is
    mapped already, and is held in that mapping.
    """
    try:
        with files.regular(path) as descriptor:
            if mapped and find is not None and (there := find(kernel.of(path).of_descriptor(descriptor))) is not None:
                return there.hold(path)
            if not kernel.of(path).share(descriptor):
                return None
            return MappedFile(path, descriptor) if mapped else _CopiedFile(path, descriptor)
    except OSError as error:
        raise files.unread(path, "a data file", error) from error


@final
class MappedFile(DataFile):
    """A data file that is used where it lies."""

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(path, descriptor)
        # Private and writable: numpy and dlpack share nothing that is read-only. A write would stay in this process.
        flags, access = mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
        self._memory: mmap.mmap | bytes = b""  # an empty file cannot be mapped
        self._present: list[tuple[int, int]] = []  # ranges that were brought in, shared by all names of the file
        if self.size:
            try:
                self._memory = mmap.mmap(descriptor, self.size, flags=flags, prot=access)
            except ValueError as error:  # it was cut after its size was read
                raise CorruptCheckpointError(path, expected="a data file at rest", found="one that was cut") from error

    def hold(self, path: Path) -> MappedFile:
        """The file under another name: in the same memory, and locked for as long as either is in use."""
        same = copy_of(self)
        same.path = path
        return same

    def memory(self, offset: int, size: int) -> memoryview:
        return memoryview(self._memory)[offset : offset + size]

    def read(self, offset: int, size: int) -> memoryview:
        self.check(offset, size)
        return self.memory(offset, size)

    def check(self, offset: int, size: int) -> None:
        if isinstance(self._memory, mmap.mmap) and self._memory.size() < offset + size:  # of the file, as it is now
            raise self._too_short(offset, size)

    def prefault(self, offset: int, size: int) -> None:
        if not size:
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
        return not size or memory.is_present(np.frombuffer(self._memory, np.uint8), offset, offset + size)

    def bring_in(self, offset: int, size: int) -> bool:
        """Prefault a file that nobody holds yet, one range behind the other. False where this kernel cannot do so."""
        self.check(offset, size)
        if not self._populate(offset, size):
            return False
        self._note(offset, size)
        return True

    def _note(self, offset: int, size: int) -> None:
        start, stop = offset, offset + size
        if self._present and self._present[-1][1] == offset:
            start = self._present[-1][0]
        self._present[:] = [known for known in self._present if known[0] < start or known[1] > stop]
        self._present.append((start, stop))

    def _populate(self, offset: int, size: int) -> bool:
        try:
            return memory.make_readable(np.frombuffer(self._memory, np.uint8), offset, offset + size)
        except OSError as error:
            self.check(offset, size)  # behind the end of the file is no page; else the disk, or the memory, has failed
            raise files.unread(self.path, "a data file", error) from error

    def let_pages_go(self) -> None:
        if self.size:
            self._present.clear()
            memory.drop_pages(np.frombuffer(self._memory, np.uint8))


@final
class _CopiedFile(DataFile):
    """A data file whose bytes are copied when they are first asked for: nobody can take a copy away."""

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(path, descriptor)
        self._copies: dict[tuple[int, int], memoryview] = {}
        self._descriptor = os.dup(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def memory(self, offset: int, size: int) -> memoryview:
        place = offset, size
        copy = self._copies.get(place)
        # Two threads may copy the same bytes at once: the first one's copy is the one to check and to use.
        return copy if copy is not None else self._copies.setdefault(place, self.read(offset, size))

    def check(self, offset: int, size: int) -> None:
        """Does nothing: nobody can cut a copy."""

    def prefault(self, offset: int, size: int) -> None:
        """Does nothing: a copy is in the page table."""

    def is_present(self, offset: int, size: int) -> bool:
        return True

    def let_pages_go(self) -> None:
        """Does nothing: the same advice to the kernel would fill a copy with zeros."""

    def read(self, offset: int, size: int) -> memoryview:
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
