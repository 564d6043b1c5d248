"""A virtual environment for each peer, in a cache folder, with the packages that the table names."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from bench.settings import environment_of_peers
from paramsync.errors import ParamsyncError

PACKAGES: dict[str, tuple[str, ...]] = {
    "triton": ("nvidia-pytriton==0.7.0", "numpy==1.26.4", "grpcio==1.85.3", "protobuf==6.33.6"),
    "mlserver": ("mlserver==1.7.1", "numpy==2.4.6", "grpcio==1.85.3", "uvloop==0.23.0"),
    "ray_serve": ("ray[serve]==2.60.0", "numpy==2.4.6", "grpcio==1.85.3", "uvloop==0.23.0"),
    "litserve": ("litserve==0.2.19", "numpy==2.4.6", "uvloop==0.23.0"),
}
_PYTHON = Path("/usr/bin/python3")  # of the system: Triton's backend loads the system's libpython
_PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


class InstallError(ParamsyncError):
    """A peer cannot be had here; the text says why."""


def python(peer: str, cache: Path) -> Path:
    """The Python of a peer's environment, which is made where it is not there. Raises InstallError."""
    packages = PACKAGES[peer]
    digest = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:8]
    folder = cache / f"{peer}-{digest}"
    program = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        cache.mkdir(parents=True, exist_ok=True)
        base = _PYTHON if _PYTHON.exists() else Path(sys.executable)
        _run(str(base), "-m", "venv", str(folder))
        _run(str(program), *_PIP, *packages)
        done.touch()
    return program


def _run(*command: str) -> None:
    ended = subprocess.run(command, env=environment_of_peers(), capture_output=True, text=True, check=False)
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip().splitlines()
        raise InstallError(f"{' '.join(command[:5])} ...: {said[-1] if said else f'exit code {ended.returncode}'}")
