"""Takes descriptors, permissions or disk space away from a test, and says whether files are in use."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.checkpoints import present
from tests.support.programs import ROOT

_T = TypeVar("_T")
_CAPABILITIES_3 = 0x20080522
_READS_EVERYTHING = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def descriptors() -> set[int]:
    """Return the file descriptors that are open now."""
    with os.scandir("/proc/self/fd") as found:
        listed = {int(one.name) for one in found}
    return {one for one in listed if Path(f"/proc/self/fd/{one}").is_symlink()}


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Within this context, this process can open only `count` more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = descriptors()
    free = (number for number in range(soft) if number not in used)
    limit = next(number for at, number in enumerate(free) if at == count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def as_nobody(call: Callable[[], _T]) -> _T:
    """Call on a thread that obeys file modes (root does not), and return the result."""
    with ThreadPoolExecutor(1, initializer=_obey_modes) as thread:
        return thread.submit(call).result()


def _obey_modes() -> None:
    if not os.geteuid():
        _give_up(_READS_EVERYTHING)


def _give_up(capabilities: int) -> None:
    """Drop capabilities of only this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    if libc.capget(header, data):
        raise OSError(ctypes.get_errno(), "capget")
    data[0] &= ~capabilities
    if libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


def lock_exclusively(path: Path) -> int | None:
    """Lock a file as a publisher does before overwriting it. Returns the descriptor, or None if the file is in use."""
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


_libc = ctypes.CDLL(None)
_PAGEOUT = 21  # MADV_PAGEOUT


def run_on_small_disk(script: str, path: Path) -> None:
    """Run Python code with the argument `path`, where an 8 MB tmpfs is mounted. Skips the test if mounting fails."""
    inside = f"mount -t tmpfs -o size=8m none {path} && exec {sys.executable} -c '{script}' {path}"
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "mount", "-t", "tmpfs", "none", path], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no test mount a file system of its own")
    subprocess.run([*alone, "sh", "-c", inside], check=True, cwd=ROOT)


def dropped(path: Path, size: int = -1) -> bool:
    """Have the kernel drop the first `size` bytes of a mapped file, by default all. Returns whether pages are gone."""
    before = present(path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        for line in Path("/proc/self/maps").read_text().splitlines():
            begin, end = (int(one, 16) for one in line.split()[0].split("-"))
            if line.split()[4] == str(path.stat().st_ino):
                length = end - begin if size < 0 else size
                _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), _PAGEOUT)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return present(path) < before
