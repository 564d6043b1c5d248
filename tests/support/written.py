"""Publishes versions for tests, and reads them from the store. Imports no TensorFlow.

All parameters are the version's number, except that `tensors` also has parameters that never change.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from paramsync import dtypes
from paramsync.dtypes import Array
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.version import Version

FROZEN = np.arange(5000, dtype=np.float64)


def version(number: int, *, graph: str = "") -> Version:
    return Version(number=number, step=number, prefix="", graph=graph, step_done_at=1.5, snapshot_at=2.5)


def tensors(value: float) -> dict[str, Array]:
    return {"frozen": FROZEN, "kernel": np.full((40, 50), value, np.float32), "bias": np.full(50, value)}


def changing(value: float) -> dict[str, Array]:
    return {"kernel": np.full((4, 5), value, np.float32), "bias": np.full(5, value, np.float64)}


def publish(
    path: Path, *numbers: int, keep: int = 5, graph: str = "", of: Callable[[float], dict[str, Array]] = tensors
) -> list[Version]:
    with StoreWriter(path, keep=keep) as writer:
        if graph:
            writer.add_graph(graph, b"graph")
        return [writer.commit(version(number, graph=graph), of(number)) for number in numbers]


def publish_changing(path: Path, *numbers: int, keep: int = 5, graph: str = "") -> list[Version]:
    return publish(path, *numbers, keep=keep, graph=graph, of=changing)


def read(store: Store, version: Version) -> dict[str, Array]:
    """Read a version as a follower does: open, verify, then use. Leaves out tensors that NumPy cannot represent."""
    opened = store.open(version)
    opened.verify(opened.entries)
    return {name: opened.array(name) for name, entry in opened.entries.items() if entry.dtype != dtypes.VARIANT}


def names(path: Path, *, spares: bool = True) -> set[str]:
    """Return the files of a store, without the lock and the state file."""
    found = {file.name for file in path.iterdir()} - {"publisher.lock", "checkpoint"}
    return found if spares else {name for name in found if not is_spare(name)}


def is_spare(name: str) -> bool:
    return name.startswith(".spare-")


def files_of(*numbers: int, data: int = 2) -> set[str]:
    """Return the names of the files of versions that have `data` data files each."""
    suffixes = ["index", "json", *(f"data-{at:05d}-of-{data:05d}" for at in range(data))]
    return {f"ckpt-{number}.{suffix}" for number in numbers for suffix in suffixes}
