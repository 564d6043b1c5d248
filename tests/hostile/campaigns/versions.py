"""Versions whose every byte says which version it is of, so that a wrong byte is seen wherever it comes from."""

from __future__ import annotations

import numpy as np

from paramsync.checkpoint.reader import Bundle
from paramsync.dtypes import Array
from paramsync.version import Version

FROZEN = "frozen"
_SHAPES = {"bias": (16,), "kernel": (300, 700), "table": (40_000, 8), FROZEN: (100, 1000)}


def tensors(number: int, *, scale: int = 1) -> dict[str, Array]:
    """The parameters of a version; the frozen ones are the same in all."""
    return {
        name: np.full((shape[0] * scale, *shape[1:]), 7 if name == FROZEN else number, np.float32)
        for name, shape in _SHAPES.items()
    }


def version(number: int) -> Version:
    return Version(number=number, step=number, prefix=f"ckpt-{number}", step_done_at=0.0, snapshot_at=0.0)


def wrong(bundle: Bundle, number: int) -> list[str]:
    """The names whose values are not all of that version."""
    found = {name: bundle.array(name) for name in bundle.entries}
    expected = {name: 7 if name == FROZEN else number for name in _SHAPES}
    return [name for name, value in expected.items() if name not in found or not bool(np.all(found[name] == value))]
