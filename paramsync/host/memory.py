"""What the C library does with memory and Python has no word for; none of it keeps the interpreter meanwhile."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

import numpy as np

from paramsync.dtypes import Array

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, in Linux since 5.14
_REMOVE = 9  # MADV_REMOVE of Linux

_libc = ctypes.CDLL(None, use_errno=True)
_memcmp = _libc.memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_mincore = _libc.mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def equal(one: Array, other: Array, start: int, stop: int) -> bool:
    """Whether two arrays of bytes are the same from `start` to `stop`; ends at the first difference."""
    return start >= stop or not _memcmp(address(one) + start, address(other) + start, stop - start)


def make_writable(mapped: Array, start: int, stop: int) -> bool:
    """Have the pages of a mapped file in memory, ready to be written; False where this kernel does not know how.

    Raises OSError where the file system has no room for a page, which would be the end of the process at the first
    write to it.
    """
    begin = address(mapped) + start
    begin -= begin % mmap.PAGESIZE
    if not _madvise(begin, address(mapped) + stop - begin, _POPULATE_WRITE):
        return True
    problem = ctypes.get_errno()
    if problem == errno.EINVAL:
        return False
    if problem == errno.EFAULT:  # the kernel's word for a page that cannot be had
        problem = errno.ENOSPC
    raise OSError(problem, os.strerror(problem))


def is_present(mapped: Array, start: int, stop: int) -> bool:
    """Whether the kernel has these pages of a mapped file in memory; of a file that we may not write to it says yes.

    It is soon said where they are in the page table: 0.3 ms for 1 GB.
    """
    begin = address(mapped) + start
    begin -= begin % mmap.PAGESIZE
    size = address(mapped) + stop - begin
    found = np.empty(-(-size // mmap.PAGESIZE), np.uint8)
    return not _mincore(begin, size, address(found)) and bool((found & 1).all())


def give_back(mapped: Array) -> None:
    """Have no page behind a mapped file in memory any more, whoever else has it mapped: it is full of zeros then."""
    _madvise(address(mapped), len(mapped), _REMOVE)  # refused, the pages go when nobody has the file


def address(array: Array) -> int:
    found: int = array.__array_interface__["data"][0]
    return found
