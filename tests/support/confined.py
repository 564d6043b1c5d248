"""A process that may take no more than so much memory beside what it has: the kernel kills one that does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OLD, _NEW = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def peak(pid: int) -> int:
    """The most memory that it has had so far, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def peak_from_now(pid: int) -> int:
    """What it has now, in bytes, and from now on `peak` is of nothing that was before."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak(pid)


@contextmanager
def confined(pid: int, more: int) -> Iterator[str]:
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
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:  # no controller of memory, or none that we may use
            group.rmdir()
            continue
        try:
            yield str(group)
        finally:
            with suppress(ProcessLookupError):
                (folder / "cgroup.procs").write_text(str(pid))
            group.rmdir()
        return
    yield ""
