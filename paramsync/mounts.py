"""Which file systems are in this machine's memory."""

from __future__ import annotations

import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")


def is_memory(found: os.stat_result) -> bool:
    """Whether this file or directory is in memory, on tmpfs; False where this machine does not say."""
    number = f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}"
    try:
        mounts = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return False
    fields = [line.split() for line in mounts]
    return any(one[2] == number and one[one.index("-") + 1] == "tmpfs" for one in fields)
