"""Files that a store's FilePool write, and somebody who holds them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paramsync.checkpoint.file_pool import FilePool

SIZE = 100_000


def write(spares: FilePool, path: Path, value: int, size: int = SIZE) -> int:
    """Returns the inode."""
    with spares.writing(path, size) as file:
        file.content[:] = value
    assert path.read_bytes()[:size] == bytes([value]) * size
    return path.stat().st_ino


def listing(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


@contextmanager
def held(path: Path) -> Iterator[None]:
    """As a follower holds it."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
