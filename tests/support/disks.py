"""Disks for tests: runs code on a small disk of its own, and has the kernel drop cached pages of files."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkpoints import present
from tests.support.programs import ROOT

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
