"""Writes files through a store's FilePool, and holds files as a follower does."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paramsync.checkpoint.file_pool import FilePool

SIZE = 100_000


def write(spares: FilePool, path: Path, value: int, size: int = SIZE) -> int:
    """Write a file of equal bytes. Returns its inode."""
    with spares.writing(path, size) as file:
        file.content[:] = value
    assert path.read_bytes()[:size] == bytes([value]) * size
    return path.stat().st_ino


def listing(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a file as a follower does."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
