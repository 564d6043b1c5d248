"""Which file systems are in this machine's memory."""

from __future__ import annotations

import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")


def is_memory(found: os.stat_result) -> bool:
    """Whether this file or directory is in memory, on tmpfs; False where this machine does not say."""
    device = b"%d:%d" % (os.major(found.st_dev), os.minor(found.st_dev))
    try:
        mounts = _MOUNTS.read_bytes()
    except OSError:
        return False
    # Fields by place, then optional ones up to "-", then the type. In names the kernel escapes these two characters.
    lines = [line.split(b" ") for line in mounts.split(b"\n")]
    return any(one[2:3] == [device] and one[one.index(b"-", 6) + 1] == b"tmpfs" for one in lines if b"-" in one[6:-1])
