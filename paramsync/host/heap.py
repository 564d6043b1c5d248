"""How much freed memory the C library keeps: enough for the next message of usual size, and little after a storm."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
_KEPT = 16 << 20
_LARGE = 4 << 20


def keep_some() -> None:
    """Keep so much at the end of each heap, larger blocks not at all; without such settings, things stay as they are.

    Of itself glibc begins by giving back all but 128 kB, whose pages the next message then waits for, and learns from
    each larger block that is freed to keep more, up to 64 MB a heap, of which there may be eight for each processor.
    """
    with suppress(AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, _LARGE)
        set_option(_M_TRIM_THRESHOLD, _KEPT)


def give_back() -> None:
    """What was freed and lies between what is used, after much was freed at once."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
