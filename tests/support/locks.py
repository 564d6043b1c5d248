"""Whether files are in use: asked as a publisher asks, by the lock that it has before it overwrites one."""

from __future__ import annotations

import fcntl
import gc
import os
from pathlib import Path


def lock_exclusively(path: Path) -> int | None:
    """What a publisher does before it overwrites a file: the descriptor, None where somebody holds it."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_held(path: Path) -> bool:
    """By anything that this process still refers to, or by another process."""
    gc.collect()
    descriptor = lock_exclusively(path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None
