"""Limits how much more memory processes may take than they have now. Above the limit, the kernel kills a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OLD, _NEW = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def peak(*pids: int) -> int:
    """Return the sum of these processes' peak memory in bytes. Together they may have had less at any one time."""
    return sum(_peak(pid) for pid in pids)


def charged(group: str) -> int:
    """Return the peak memory in bytes of a cgroup's processes, without memory from before they were confined."""
    names = ("memory.max_usage_in_bytes", "memory.peak")
    [found] = [path for name in names if (path := Path(group) / name).exists()]
    return int(found.read_text())


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def peak_from_now(*pids: int) -> int:
    """Reset `peak` of these processes. Returns their present memory in bytes."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak(*pids)


@contextmanager
def confined(*pids: int, more: int) -> Iterator[str]:
    """Put processes into a new cgroup, if this machine allows one. Their present memory is not charged to the cgroup.

    Yields the cgroup, or "" without one. Tests check `peak`, which needs no cgroup, in any case.
    """
    for folder, limit in ((_OLD, "memory.limit_in_bytes"), (_NEW, "memory.max")):
        group = folder / f"paramsync-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(more))
            for pid in pids:
                (group / "cgroup.procs").write_text(str(pid))
        except OSError:  # there is no memory controller, or we may not use it
            group.rmdir()
            continue
        try:
            yield str(group)
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    (folder / "cgroup.procs").write_text(str(pid))
            group.rmdir()
        return
    yield ""
