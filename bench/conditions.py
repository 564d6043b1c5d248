"""Collects the conditions of a measurement, such as processor, file system, versions and load."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.settings import Settings

_PACKAGES = ("paramsync", "tensorflow", "keras", "numpy", "crc32c", "h5py", "safetensors", "orbax-checkpoint", "jax")


def collect(settings: Settings, load_before: tuple[float, float, float]) -> dict[str, Any]:
    """Return the conditions. Call this after measuring, with the load average from before."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "runs": settings.runs,
        "tensors": settings.tensors,
        "frozen_pct": settings.frozen,
        "folder": str(settings.folder),
        "file_system": _file_system(settings.folder),
        "cpu": line("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": line("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _installed(name) for name in _PACKAGES},
        "load_average_before": load_before,
        "load_average_after": os.getloadavg(),
    }


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def line(file: str, key: str) -> str | None:
    """Return the value of a key in a file of /proc."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def _file_system(folder: Path) -> str | None:
    """Return the type of the folder's file system. Of several mounts above the folder, the longest path counts."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return None
    holding = [
        (len(point), at, kind) for at, (point, kind) in enumerate(mounts) if folder.resolve().is_relative_to(point)
    ]
    return max(holding)[2] if holding else None
