"""Takes file descriptors or permissions away while a block of a test runs."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")
_CAPABILITIES_3 = 0x20080522
_READS_EVERYTHING = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def descriptors() -> set[int]:
    """The file descriptors that are open now."""
    with os.scandir("/proc/self/fd") as found:
        listed = {int(one.name) for one in found}
    return {one for one in listed if Path(f"/proc/self/fd/{one}").is_symlink()}


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Within this context, this process can open only `count` more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = descriptors()
    free = (number for number in range(soft) if number not in used)
    limit = next(number for at, number in enumerate(free) if at == count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def as_nobody(call: Callable[[], _T]) -> _T:
    """Call on a thread that obeys file modes (root does not), and return the result."""
    with ThreadPoolExecutor(1, initializer=_obey_modes) as thread:
        return thread.submit(call).result()


def _obey_modes() -> None:
    if not os.geteuid():
        _give_up(_READS_EVERYTHING)


def _give_up(capabilities: int) -> None:
    """Drop capabilities of only this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    if libc.capget(header, data):
        raise OSError(ctypes.get_errno(), "capget")
    data[0] &= ~capabilities
    if libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")
