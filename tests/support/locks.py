"""Checks whether files are in use as a publisher does: by taking the lock that it needs before it overwrites a file."""

from __future__ import annotations

import fcntl
import gc
import os
from pathlib import Path


def lock_exclusively(path: Path) -> int | None:
    """Lock a file as a publisher does before it overwrites the file. Returns the descriptor; None: the file is held."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_held(path: Path) -> bool:
    """Whether a file is held, by objects that this process still refers to or by another process."""
    gc.collect()
    descriptor = lock_exclusively(path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None
