"""Memory as the kernel and the C library manage it: pages, the heap, and file systems that are memory.

Python has no calls for most of it. All of them release the GIL.
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
_DROPPED = 256 << 20  # bytes whose pages one call drops: other threads that allocate memory wait for it
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # from malloc.h
_HEAPS = 8
_KEPT = 16 << 20  # bytes that each heap keeps at its end
_LARGE = 4 << 20  # bytes of a block that is never kept
_MOUNTS = Path("/proc/self/mountinfo")

_libc = ctypes.CDLL(None, use_errno=True)
_memcmp = _libc.memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_mincore = _libc.mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_madvise = _libc.madvise  # mmap.madvise would keep the GIL while the disk is read
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def equal(first: Array, second: Array, start: int, stop: int) -> bool:
    """Whether two arrays of bytes are equal from `start` to `stop`. Ends at the first difference."""
    return start >= stop or not _memcmp(address(first) + start, address(second) + start, stop - start)


def make_writable(mapped: Array, start: int, stop: int) -> bool:
    """Allocate the pages of a mapped file, ready to be written; False where this kernel cannot do so.

    Raises OSError where the file system has no room for a page; the first write to it would end the process.
    """
    return _populate(mapped, start, stop, _POPULATE_WRITE, fault=errno.ENOSPC)


def make_readable(mapped: Array, start: int, stop: int) -> bool:
    """Bring the pages of a mapped file into the page table; False where this kernel cannot do so. Raises OSError."""
    return _populate(mapped, start, stop, _POPULATE_READ, fault=errno.EIO)


def is_present(mapped: Array, start: int, stop: int) -> bool:
    """Whether the page cache has these pages of a mapped file; for a file that we may not write to it says yes.

    The answer takes 0.3 ms for 1 GB where the pages are in the page table.
    """
    import numpy as np  # whoever has an array has imported it; a program that only limits its heap has not

    begin, size = _pages(mapped, start, stop)
    present = np.empty(-(-size // mmap.PAGESIZE), np.uint8)
    return not _mincore(begin, size, address(present)) and bool((present & 1).all())


def drop_pages(mapped: Array) -> None:
    """Take a mapped file out of this process's page table. Whoever reads it has the file's pages again."""
    if sys.platform == "linux":  # elsewhere the advice may mean something else
        for start in range(0, len(mapped), _DROPPED):
            # refused, it costs memory alone
            _madvise(address(mapped) + start, min(_DROPPED, len(mapped) - start), mmap.MADV_DONTNEED)


def free_pages(mapped: Array) -> None:
    """Free every page of a mapped file, whoever else has it mapped: the file is all zeros afterwards."""
    _madvise(address(mapped), len(mapped), _REMOVE)  # refused, the pages go when nobody has the file


def address(array: Array) -> int:
    start: int = array.__array_interface__["data"][0]
    return start


def is_memory(status: os.stat_result) -> bool:
    """Whether this file or directory is in memory, on tmpfs; False where this machine does not say."""
    device = b"%d:%d" % (os.major(status.st_dev), os.minor(status.st_dev))
    with suppress(OSError):
        # Fields by place, then optional ones up to "-", then the type. In names the kernel escapes these characters.
        mounted = [line.split(b" ") for line in _MOUNTS.read_bytes().split(b"\n")]
        tmpfs = [fields for fields in mounted if b"tmpfs" in fields[7:] and b"-" in fields[6:-1]]
        return any(fields[2] == device and fields[fields.index(b"-", 6) + 1] == b"tmpfs" for fields in tmpfs)
    return False


def limit_heap() -> None:
    """Have the C library keep little of what is freed; without these settings it behaves as before.

    glibc begins by giving back all but 128 kB, whose pages the next message then waits for, and learns from each larger
    block that is freed to keep more, up to 64 MB a heap, of which there may be eight for each processor: here eight in
    all, for there is a worker for each processor.
    """
    with suppress(AttributeError):
        set_option = _libc.mallopt
        set_option(_M_MMAP_THRESHOLD, _LARGE)
        set_option(_M_TRIM_THRESHOLD, _KEPT)
        set_option(_M_ARENA_MAX, _HEAPS)


def trim_heap() -> None:
    """Give freed memory between used blocks back, after much was freed at once."""
    with suppress(AttributeError):
        _libc.malloc_trim(0)


def _populate(mapped: Array, start: int, stop: int, advice: int, *, fault: int) -> bool:
    """`fault` is the error that EFAULT, the kernel's word for a page that cannot be had, stands for."""
    if not _madvise(*_pages(mapped, start, stop), advice):
        return True
    problem = ctypes.get_errno()
    if problem == errno.EINVAL:
        return False
    problem = fault if problem == errno.EFAULT else problem
    raise OSError(problem, os.strerror(problem))


def _pages(mapped: Array, start: int, stop: int) -> tuple[int, int]:
    """Address and size of a range, extended to the beginning of its first page."""
    begin = address(mapped) + start
    begin -= begin % mmap.PAGESIZE
    return begin, address(mapped) + stop - begin
