"""Prometheus' own programs: this machine's, or those of Debian's package, unpacked beside what the tests run with."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_HOME = Path(sys.prefix) / "prometheus"
_SECONDS = 300  # to fetch 20 MB from a slow mirror


def program(name: str) -> str:
    """The path of `promtool` or `prometheus`. Fails where neither the machine nor Debian has it."""
    if found := shutil.which(name):
        return found
    unpacked = _HOME / "usr" / "bin" / name
    _HOME.mkdir(exist_ok=True)
    with (_HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of the tests that run side by side one fetches
        if not unpacked.exists():
            _fetch()
    return str(unpacked)


def promtool(*arguments: str | Path, given: bytes = b"") -> str:
    """What promtool complains of, or else what it says; it may have been given something to read."""
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def _fetch() -> None:
    """Only unpacked, not installed: it needs nothing that Debian's package depends on, and starts no service."""
    with tempfile.TemporaryDirectory(dir=_HOME) as folder:
        download = ["apt-get", "-qq", "download", "prometheus"]
        for command in (download, ["apt-get", "-qq", "update"], download):
            try:
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, check=False, timeout=_SECONDS
                )
            except FileNotFoundError as error:
                raise AssertionError("needs promtool and prometheus; install Prometheus 2.42 or newer") from error
            packages = list(Path(folder).glob("*.deb"))
            if packages:
                break
        else:
            raise AssertionError(f"needs promtool and prometheus: apt-get install prometheus\n{done.stderr}")
        subprocess.run(["dpkg-deb", "--extract", packages[0], folder], check=True, timeout=_SECONDS)
        shutil.rmtree(_HOME / "usr", ignore_errors=True)
        (Path(folder) / "usr").rename(_HOME / "usr")
