"""Who publishes to a store: one process at a time, and the kernel knows when it dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path

from paramsync.errors import StoreLockedError

_FILE = "publisher.lock"
_LIMIT = 1024  # bytes


def take(store: Path) -> int:
    """The descriptor that holds the lock. Raises StoreLockedError, which names the holder, and OSError."""
    descriptor = os.open(store / _FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _owner(), 0)
    except BlockingIOError as error:
        owner = os.pread(descriptor, _LIMIT, 0).decode(errors="replace")
        os.close(descriptor)
        raise StoreLockedError(store, _described(owner)) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def holds(descriptor: int, store: Path) -> bool:
    """Whether the lock is that of the store at this path: the directory may have been removed, and made again."""
    try:
        return os.path.samestat(os.fstat(descriptor), (store / _FILE).lstat())
    except OSError:
        return False


def release(descriptor: int) -> None:
    """Give the lock back, even where a forked child has the descriptor too; in such a child, only close that."""
    if os.pread(descriptor, _LIMIT, 0).startswith(_owner()):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _owner() -> bytes:
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode() + b"\n"


def _described(owner: str) -> str:
    try:
        values = json.loads(owner)
        return f"process {values['pid']} on {values['host']}"
    except (ValueError, TypeError, KeyError, RecursionError):
        return "which did not say who it is"
