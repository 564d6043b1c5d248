"""Data files that are held: nobody overwrites what is held as long as anything of it is in use.

What several versions have in common is mapped once: to bring it into the page table is most of what a restore takes.

A shared flock belongs to the open file, not to a descriptor of it: a mapping has a descriptor of its own for the same
open file, and so keeps the lock until it goes, with the last array or tensor in it. A process that dies keeps nothing.
Locking takes no permission to write, neither to the file nor to its directory.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy as copy_of
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, final

import numpy as np

from paramsync.checkpoint.placement import ALIGNMENT
from paramsync.checkpoint.seal import FileId, Trace
from paramsync.errors import CorruptCheckpointError, UnreadableError
from paramsync.host import files, kernel, memory
from paramsync.host.kernel import Facts
from paramsync.tensorbundle.checksums import crc32c

_POPULATE_READ = 22  # MADV_POPULATE_READ, which Python has no name for; Linux 5.14
# Bytes at once: other threads that allocate memory wait no longer than this takes, and between two of them this thread
# waits for the interpreter, and others for it.
PORTION = 32 << 20
_LET_GO = 256 << 20
_MADVISE = ctypes.CDLL(None, use_errno=True).madvise  # mmap.madvise would keep the interpreter while the disk is read
_MADVISE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@dataclass(frozen=True, slots=True)
class Outline:
    """A data file, and where what matters of it is."""

    file_id: FileId
    size: int
    stretches: list[tuple[int, int]] = field(default_factory=list)  # from, to


class Held(ABC):
    """A data file that nobody overwrites. Safe to use from any thread; one thread brings pages in and lets them go."""

    def __init__(self, path: Path, descriptor: int) -> None:
        found = kernel.of(path).of_descriptor(descriptor)
        self.path = path
        self.size = found.st_size
        self.trace = Trace.of(found)

    def has_its_name(self) -> bool:
        """Whether the path still leads to this file. Raises UnreadableError where nobody can tell now."""
        try:
            found = kernel.of(self.path).of_name(self.path.parent, self.path.name)
        except OSError as error:
            if files.is_of_the_file(error):
                return False
            raise files.unread(self.path, "a data file", error) from error
        return (found.st_dev, found.st_ino) == self.trace.file_id

    @abstractmethod
    def memory(self, offset: int, size: int) -> memoryview:
        """These bytes of the file, which may be written to and keep what they lie in alive.

        The same ones at each call. Raises CorruptCheckpointError where the file has become too short for them,
        UnreadableError where they cannot be read now.
        """

    @abstractmethod
    def read(self, offset: int, size: int) -> memoryview:
        """These bytes as they are now; nothing of them is kept for another call. Raises as `memory` does."""

    @abstractmethod
    def check(self, offset: int, size: int) -> None:
        """Raise CorruptCheckpointError where reading these bytes of some `memory` would end the process."""

    @abstractmethod
    def prefault(self, offset: int, size: int) -> None:
        """Have the kernel bring these bytes of some `memory` into the page table, without keeping the interpreter.

        Raises CorruptCheckpointError where the file has become too short for them, UnreadableError for other reasons.
        """

    @abstractmethod
    def is_present(self, offset: int, size: int) -> bool:
        """Whether none of these bytes of some `memory` would be read from a disk now, as far as the kernel tells."""

    @abstractmethod
    def let_pages_go(self) -> None:
        """Take every `memory` of a mapped file out of this process's page table; whoever reads it has it again.

        So it is for whoever else holds the file in the same memory. The bytes come from the file then, as they did at
        first: nobody may have written to a `memory`. What was copied stays as it is.
        """

    def _too_short(self, offset: int, size: int) -> CorruptCheckpointError:
        expected = f"{size} bytes at {offset}, as when it was opened"
        return CorruptCheckpointError(self.path, expected=expected, found="a file that was cut")


class There(Protocol):
    """A data file that is mapped already."""

    def hold(self, path: Path) -> Held | None:
        """The same memory, held under a name that the file has now; None where somebody is overwriting it.

        Raises OSError.
        """


Find: TypeAlias = "Callable[[Facts], There | None]"
"""Gives the file with these facts, if it is mapped already: who asks holds it."""


def hold(path: Path, *, mapped: bool, find: Find | None = None) -> Held | None:
    """Open and lock a data file; None where somebody is overwriting it. Raises CorruptCheckpointError, UnreadableError.

    Mapped, its bytes are used where they lie: whoever truncates the file then ends this process with SIGBUS. Not
    mapped, they are copied when they are asked for, and what happens to the file afterwards does not matter. What
    `find` gives is mapped already, and is held where it is.
    """
    try:
        with files.regular(path) as descriptor:
            if mapped and find is not None and (there := find(kernel.of(path).of_descriptor(descriptor))) is not None:
                return there.hold(path)
            if not kernel.of(path).share(descriptor):
                return None
            return Mapped(path, descriptor) if mapped else _Copied(path, descriptor)
    except OSError as error:
        raise files.unread(path, "a data file", error) from error


@final
class Mapped(Held):
    """One that is used where it lies."""

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(path, descriptor)
        # Private and writable: numpy and dlpack share nothing that is read-only. A write would stay in this process.
        flags, access = mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
        self._memory: mmap.mmap | bytes = b""  # an empty file cannot be mapped
        self._present: list[tuple[int, int]] = []  # stretches that were brought in, from and to, for all of its names
        if self.size:
            try:
                self._memory = mmap.mmap(descriptor, self.size, flags=flags, prot=access)
            except ValueError as error:  # it was cut after its size was read
                raise CorruptCheckpointError(path, expected="a data file at rest", found="one that was cut") from error

    def hold(self, path: Path) -> Mapped:
        """By another name of the same file: in the same memory, and locked for as long as either is in use."""
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
            return  # to ask for it again would take half as long; what was dropped and is in memory again is soon had
        for at in range(offset, offset + size, PORTION):
            length = min(PORTION, offset + size - at)
            if not self._populate(at, length):
                crc32c(self.memory(at, length))  # an older kernel: each page is there once it was read
        self._note(offset, size)

    def is_present(self, offset: int, size: int) -> bool:
        return not size or memory.is_present(np.frombuffer(self._memory, np.uint8), offset, offset + size)

    def bring_in(self, offset: int, size: int) -> bool:
        """The same before anybody holds the file, one stretch behind the other. Whether this kernel can do it."""
        self.check(offset, size)
        if not self._populate(offset, size):
            return False
        self._note(offset, size)
        return True

    def _note(self, offset: int, size: int) -> None:
        start, stop = offset, offset + size
        if self._present and self._present[-1][1] == offset:
            start = self._present[-1][0]
        self._present[:] = [one for one in self._present if one[0] < start or one[1] > stop]
        self._present.append((start, stop))

    def _populate(self, offset: int, size: int) -> bool:
        start = offset - offset % mmap.PAGESIZE
        address = np.frombuffer(self._memory, np.uint8).ctypes.data
        if _MADVISE(address + start, offset + size - start, _POPULATE_READ) == 0:
            return True
        if (number := ctypes.get_errno()) == errno.EINVAL:
            return False
        self.check(
            offset, size
        )  # what is not there is no page; else they cannot be read, or there is no memory for them
        raise UnreadableError(self.path, os.strerror(errno.EIO if number == errno.EFAULT else number))

    def let_pages_go(self) -> None:
        if not self.size or sys.platform != "linux":  # elsewhere the advice may mean something else
            return
        self._present.clear()
        address = np.frombuffer(self._memory, np.uint8).ctypes.data
        for at in range(0, self.size, _LET_GO):
            _MADVISE(address + at, min(_LET_GO, self.size - at), mmap.MADV_DONTNEED)  # refused, it costs memory alone


@final
class _Copied(Held):
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
        """What was copied cannot be taken away."""

    def prefault(self, offset: int, size: int) -> None:
        """What was copied is there."""

    def is_present(self, offset: int, size: int) -> bool:
        return True

    def let_pages_go(self) -> None:
        """What was copied is nowhere else: the same advice to the kernel would fill it with zeros."""

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
