"""Shows whether data files are as their publisher left them: in this machine's memory, and not written to since.

Then their bytes are those whose checksums the publisher computed, and computing them again shows nothing new. A disk
may give back other bytes than it was given, and another machine may have copied half of them: neither has a seal.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from paramsync.host.kernel import Facts

_BOOT = Path("/proc/sys/kernel/random/boot_id")

FileId = tuple[int, int]
"""Device and inode, which tell a file from all others."""


class FileStamp(NamedTuple):
    """Tells a file from all others of its file system, and from itself once it is written to."""

    device: int
    inode: int
    size: int
    written_at: int  # nanoseconds

    @classmethod
    def of(cls, found: Facts) -> FileStamp:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    @property
    def file_id(self) -> FileId:
        return self.device, self.inode


def stamp_now(descriptor: int) -> FileStamp:
    """Set the file's time of writing to now: writing through a mapping does not do so."""
    now = time.time_ns()
    try:
        os.utime(descriptor, ns=(now, now))
    except PermissionError:  # somebody else's file, which we may write: its time is the kernel's then
        os.utime(descriptor)
    return FileStamp.of(os.fstat(descriptor))


def seal(stamps: Sequence[FileStamp], directory: Path) -> str:
    """The seal of a version's data files, in their order, in this directory; "" where this machine says not enough.

    The file system has an identity of its own since it was mounted: another one counts inodes from one, too.
    """
    boot = _boot()
    try:
        mounted = os.statvfs(directory).f_fsid
    except OSError:
        return ""
    return hashlib.sha256(repr((boot, mounted, *map(tuple, stamps))).encode()).hexdigest() if boot else ""


@lru_cache(maxsize=1)
def _boot() -> str:
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""
