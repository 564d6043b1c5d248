"""Memory and processors that a process may use, and how processes end. For Linux."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # the processor quota of a container
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_SET_PDEATHSIG = 1  # from prctl.h
_SET_CHILD_SUBREAPER = 36
_FIRST = "1000"  # the highest value: if memory is used up, the kernel kills this process first


def limit_memory(share: float) -> None:
    """Limit this process to a share of all memory, and have the kernel kill it first if memory is used up."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST)
    with suppress(ValueError, OSError):
        most = int(memory_bytes() * share)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def memory_bytes() -> int:
    """Return the bytes of the machine's memory, or the container's limit if it is lower."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in _MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # the file says "max" if there is no limit
            found = min(found, int(limit.read_text()))
    return found


class Memory(NamedTuple):
    """Memory of a process in bytes: `resident` is all of its memory, `private` is the part not backed by files."""

    resident: int
    private: int


def memory_of(pid: int) -> Memory:
    """Return the memory of a process; zero if the process is gone. Reading it does not delay the process."""
    with suppress(OSError):
        _, resident, of_files, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        page = os.sysconf("SC_PAGE_SIZE")
        return Memory(resident * page, (resident - of_files) * page)
    return Memory(0, 0)


def processors() -> int:
    """Return how many processors this process may use, within its affinity and its container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # the file says "max 100000" if there is no quota
        quota, period = map(int, _QUOTA.read_text().split())
        count = min(count, -(-quota // period))
    return max(1, count)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even if this process is stopped."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
