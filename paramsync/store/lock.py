"""Locks a store for one publisher at a time; the kernel gives the lock back when that process dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import uuid
from pathlib import Path

from paramsync.errors import CorruptCheckpointError, StoreLockedError
from paramsync.host import files
from paramsync.store import layout

_FILE = layout.LOCK
_LIMIT = 1024  # bytes


def take(store: Path) -> int:
    """Take the lock; returns the descriptor that holds it. Raises StoreLockedError, which names the holder, OSError."""
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
    """Whether the lock is still that of the store at this path, whose directory may have been removed and made again.

    Raises OSError where nobody can tell now: that is no reason to give the lock back.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), (store / _FILE).lstat())
    except OSError as error:
        if files.is_of_the_file(error):
            return False
        raise


def release(descriptor: int) -> None:
    """Give the lock back, even where a forked child has the descriptor too; such a child only closes its own."""
    try:
        values = json.loads(os.pread(descriptor, _LIMIT, 0))
    except (ValueError, RecursionError):  # a stranger wrote there
        values = None
    if isinstance(values, dict) and (values.get("pid"), values.get("host")) == _process():
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def owner(store: Path) -> str:
    """The text that the last publisher wrote into the lock, which no two of them share; "" where there was none.

    It tells whether two paths, perhaps on different machines, lead to one store, or a copy of it.
    """
    try:
        return files.content(store / _FILE, limit=_LIMIT).decode(errors="replace").strip()
    except (OSError, CorruptCheckpointError):
        return ""


def _process() -> tuple[int, str]:
    return os.getpid(), socket.gethostname()


def _owner() -> bytes:
    pid, host = _process()
    return json.dumps({"pid": pid, "host": host, "id": uuid.uuid4().hex}).encode() + b"\n"


def _described(owner: str) -> str:
    try:
        values = json.loads(owner)
        return f"process {values['pid']} on {values['host']}"
    except (ValueError, TypeError, KeyError, RecursionError):
        return "which did not say who it is"
