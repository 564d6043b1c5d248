"""What tests publish: parameters that are the version, and some that never change. Imports no TensorFlow."""

from __future__ import annotations

import numpy as np

from paramsync.dtypes import Array
from paramsync.version import Version

FROZEN = np.arange(5000, dtype=np.float64)


def version(number: int, *, graph: str = "") -> Version:
    return Version(number=number, step=number, prefix="", graph=graph, step_done_at=1.5, snapshot_at=2.5)


def tensors(value: float) -> dict[str, Array]:
    return {"frozen": FROZEN, "kernel": np.full((40, 50), value, np.float32), "bias": np.full(50, value)}
