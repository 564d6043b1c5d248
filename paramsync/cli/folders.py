"""The folder of one run of `paramsync up`: in memory where there is room, gone with its owner."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "paramsync-up-"
_MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def run_folder(parent: Path) -> Iterator[Path]:
    """A folder that is removed at the end, or by the next run where this process is killed.

    Its owner holds a lock on it. It gets its name once it is locked, so that under that name only what nobody owns any
    more can be locked by another.
    """
    hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
    lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    folder = hidden
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = hidden.rename(parent / hidden.name.removeprefix("."))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_behind(parent: Path) -> None:
    """Remove the folders of runs that were killed. What belongs to somebody else, or to a run that lives, stays."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # locked, or no folder, or gone by now
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def places() -> list[Path]:
    """Where the folder of a run may be."""
    return [_MEMORY, Path(tempfile.gettempdir())]


def fast_place(memory: Path = _MEMORY, *, room: int = 256 * 2**20) -> Path:
    """Where temporary files are fastest: in memory where there is room, else where the system puts them."""
    elsewhere = Path(tempfile.gettempdir())
    try:
        free = os.statvfs(memory)
    except OSError:
        return elsewhere
    usable = os.access(memory, os.W_OK | os.X_OK) and free.f_bavail * free.f_frsize >= room
    return memory if usable else elsewhere
