"""A disk of a test's own, with little room."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import ROOT


def run_on_small_disk(script: str, path: Path) -> None:
    """Run Python code whose argument is `path`, which is 8 MB of memory then; skip where that cannot be."""
    inside = f"mount -t tmpfs -o size=8m none {path} && exec {sys.executable} -c '{script}' {path}"
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "mount", "-t", "tmpfs", "none", path], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no test mount a file system of its own")
    subprocess.run([*alone, "sh", "-c", inside], check=True, cwd=ROOT)
