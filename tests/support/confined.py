"""Processes that may take no more than so much memory beside what they have: the kernel kills one where they do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OLD, _NEW = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def peak(*pids: int) -> int:
    """The most memory that these have had so far, each by itself, in bytes: together they had less at any time."""
    return sum(_peak(pid) for pid in pids)


def charged(group: str) -> int:
    """The most memory, in bytes, that processes confined by this have had together, beside what they had before."""
    names = ("memory.max_usage_in_bytes", "memory.peak")
    [found] = [path for name in names if (path := Path(group) / name).exists()]
    return int(found.read_text())


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def peak_from_now(*pids: int) -> int:
    """What they have now, in bytes, and from now on `peak` is of nothing that was before."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak(*pids)


@contextmanager
def confined(*pids: int, more: int) -> Iterator[str]:
    """In a cgroup of its own, where this machine allows one. What it has by now is not charged to that.

    Yields what confines it, "" where nothing does: `peak` has to be looked at in any case.
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
        except OSError:  # no controller of memory, or none that we may use
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
