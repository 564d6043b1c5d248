"""Processes: how much of the machine there is for them, and how much one may take. Linux."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_SET_PDEATHSIG = 1  # from prctl.h
_SET_CHILD_SUBREAPER = 36
_FIRST = "1000"  # of -1000 to 1000: the kernel ends such a process before all others


def limit_memory(share: float) -> None:
    """Let this process take a share of the memory there is at most, and be the first to end where all is used."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST)
    with suppress(ValueError, OSError):
        most = int(memory_bytes() * share)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def memory_bytes() -> int:
    """The machine's memory, or what of it a container may use."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in _MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # "max" is none
            found = min(found, int(limit.read_text()))
    return found


class Memory(NamedTuple):
    """Bytes of a process that are in memory, and of these such as are in no file."""

    resident: int
    private: int


def memory_of(pid: int) -> Memory:
    """What a process takes, pages that it shares with others included; nothing where it is gone.

    The kernel has these numbers at hand: asking for them holds the process up in nothing.
    """
    with suppress(OSError):
        _, resident, of_files, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        page = os.sysconf("SC_PAGE_SIZE")
        return Memory(resident * page, (resident - of_files) * page)
    return Memory(0, 0)


def processors() -> int:
    """How many this process may use: fewer than the machine has where it is bound to some, or has a quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # "max 100000" is none
        quota, period = map(int, _QUOTA.read_text().split())
        count = min(count, -(-quota // period))
    return max(1, count)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, also while it is stopped."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def adopt_orphans() -> None:
    """Be the parent of the processes below this one whose own parent ends."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
