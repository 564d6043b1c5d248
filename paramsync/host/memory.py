"""Calls of the kernel and the C library that manage memory: pages, the heap, file systems in memory.

Python lacks most of these calls. All release the GIL.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramsync.dtypes import Array

_POPULATE_READ, _POPULATE_WRITE = 22, 23  # MADV_POPULATE_..., in Linux since 5.14
_REMOVE = 9  # MADV_REMOVE of Linux
_DROPPED = 256 << 20  # most bytes to drop in one call: threads that allocate memory wait until the call ends
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # from malloc.h
_HEAPS = 8  # most heaps of a process
_KEPT = 16 << 20  # most freed bytes that each heap keeps at its end
_LARGE = 4 << 20  # bytes: a larger block is returned to the kernel when it is freed
_MOUNTS = Path("/proc/self/mountinfo")

_libc = ctypes.CDLL(None, use_errno=True)
_memcmp = _libc.memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_mincore = _libc.mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_madvise = _libc.madvise  # mmap.madvise would keep the GIL while the disk is read
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def equal(first: Array, second: Array, start: int, stop: int) -> bool:
    """Return whether two arrays of bytes are equal from `start` to `stop`."""
    return start >= stop or not _memcmp(address(first) + start, address(second) + start, stop - start)


def make_writable(mapped: Array, start: int, stop: int) -> bool:
    """Allocate the pages of a mapped file, ready to be written; False if this kernel cannot.

    Raises OSError if the file system has no room: a write to such a page would end the process.
    """
    return _populate(mapped, start, stop, _POPULATE_WRITE, fault=errno.ENOSPC)


def make_readable(mapped: Array, start: int, stop: int) -> bool:
    """Bring the pages of a mapped file into the page table; False if this kernel cannot. Raises OSError."""
    return _populate(mapped, start, stop, _POPULATE_READ, fault=errno.EIO)


def is_present(mapped: Array, start: int, stop: int) -> bool:
    """Return whether the page cache has these pages; always true for a file that we may not write to.

    Takes 0.3 ms for 1 GB if the pages are in the page table.
    """
    import numpy as np  # imported here, because a program that only limits its heap needs no numpy

    begin, size = _pages(mapped, start, stop)
    present = np.empty(-(-size // mmap.PAGESIZE), np.uint8)
    return not _mincore(begin, size, address(present)) and bool((present & 1).all())


def drop_pages(mapped: Array) -> None:
    """Take a mapped file out of this process's page table. The next read brings its pages back."""
    if sys.platform == "linux":  # elsewhere the advice may mean something else
        for start in range(0, len(mapped), _DROPPED):
            # errors are ignored: the pages only stay in memory
            _madvise(address(mapped) + start, min(_DROPPED, len(mapped) - start), mmap.MADV_DONTNEED)


def free_pages(mapped: Array) -> None:
    """Free every page of a mapped file, also for other processes. Afterwards the file is all zeros."""
    _madvise(address(mapped), len(mapped), _REMOVE)  # errors are ignored: removing the file frees its pages


def address(array: Array) -> int:
    start: int = array.__array_interface__["data"][0]
    return start


def is_memory(status: os.stat_result) -> bool:
    """Return whether a file or directory is in memory, on tmpfs; False if unknown."""
    device = b"%d:%d" % (os.major(status.st_dev), os.minor(status.st_dev))
    with suppress(OSError):
        # A line has six fixed fields, then optional fields, then "-", then the type of the file system.
        # The kernel escapes spaces and newlines within fields.
        mounted = [line.split(b" ") for line in _MOUNTS.read_bytes().split(b"\n")]
        tmpfs = [fields for fields in mounted if b"tmpfs" in fields[7:] and b"-" in fields[6:-1]]
        return any(fields[2] == device and fields[fields.index(b"-", 6) + 1] == b"tmpfs" for fields in tmpfs)
    return False


def limit_heap() -> None:
    """Set how much freed memory the C library keeps; does nothing if it has no such settings.

    By default glibc keeps 128 kB of freed memory at first, so the next message waits for new pages. Freeing larger
    blocks raises this limit, up to 64 MB in each heap. There may be eight heaps for each processor; here eight in total
    are enough, because there is a worker process for each processor.
    """
    with suppress(AttributeError):
        set_option = _libc.mallopt
        set_option(_M_MMAP_THRESHOLD, _LARGE)
        set_option(_M_TRIM_THRESHOLD, _KEPT)
        set_option(_M_ARENA_MAX, _HEAPS)


def trim_heap() -> None:
    """Return freed memory between used blocks to the kernel. Call it after freeing much at once."""
    with suppress(AttributeError):
        _libc.malloc_trim(0)


def _populate(mapped: Array, start: int, stop: int, advice: int, *, fault: int) -> bool:
    """Give the kernel this advice about pages. Returns False if the kernel does not know the advice.

    `fault` is the error to raise for EFAULT, which the kernel returns for a page that it cannot provide.
    """
    if not _madvise(*_pages(mapped, start, stop), advice):
        return True
    problem = ctypes.get_errno()
    if problem == errno.EINVAL:
        return False
    problem = fault if problem == errno.EFAULT else problem
    raise OSError(problem, os.strerror(problem))


def _pages(mapped: Array, start: int, stop: int) -> tuple[int, int]:
    """Return address and size of a range, from the start of its first page."""
    begin = address(mapped) + start
    begin -= begin % mmap.PAGESIZE
    return begin, address(mapped) + stop - begin
