"""Snapshots: all parameters of one step, pinned without copying them, until they are in the store.

Knows no TensorFlow by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import numpy as np
import numpy.typing as npt

from paramsync.errors import StructureError
from paramsync.publishing.device import fetch
from paramsync.publishing.metrics import MetricReader
from paramsync.store.commit import StoreWriter
from paramsync.version import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The values of one step, until they are written.

    `values` are tensors that share the variables' buffers: TensorFlow's variables are copy-on-write, so an update after
    the snapshot goes into a new buffer. That costs memory for as long as the snapshot lives. `metrics` may be tensors
    that are still being computed; they are read when the snapshot is written, not on the training thread. `graph` is
    the file of the graph that they are for; `problem` says why there are no values.
    """

    version: Version
    values: dict[str, Any]
    metrics: Mapping[str, SupportsFloat]
    graph: bytes = b""
    problem: str = ""

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """The tensors of a checkpoint, by key: the pinned buffers on the CPU; those of a GPU are fetched.

        Fetched values are released, so that a snapshot holds at most the parameters once more, and a piece, of the
        device's memory, for as long as fetching takes.
        """
        return fetch(self.values, fetched=self.let_go)

    def let_go(self, name: str) -> None:
        """Release a value that is written. May be called on any thread."""
        self.values.pop(name, None)


class FrozenVariables:
    """Knows, without comparing values, which variables have those published last. One thread owns it.

    TensorFlow's variables are copy-on-write: as long as the published buffer is held, an update goes into another one,
    so that a variable still in this buffer still has these values. Holding it costs memory once the variable is
    updated: only buffers of variables that the store found unchanged are held, and given up where a variable turns out
    to be rewritten with equal values. So at most the buffers of variables that were frozen, and are trained since the
    last publication, are held beside the variables' own.
    """

    def __init__(self) -> None:
        self._held: dict[str, npt.NDArray[np.generic]] = {}
        self._rewritten: set[str] = set()

    def names(self, tensors: Mapping[str, npt.NDArray[np.generic]]) -> set[str]:
        """The tensors of a snapshot that lie where they lay when `published` was called."""
        return {name for name, held in self._held.items() if name in tensors and _is_at(tensors[name], held)}

    def published(
        self, snapshot: Snapshot, tensors: Mapping[str, npt.NDArray[np.generic]], unchanged: Collection[str]
    ) -> None:
        """Note that these tensors were committed, of which the store found some `unchanged`."""
        self._rewritten.update(set(self._held).intersection(unchanged) - self.names(tensors))
        self._held = {
            name: tensors[name]
            for name in unchanged
            if name not in self._rewritten and "CPU" in getattr(snapshot.values.get(name), "backing_device", "")
        }


class SnapshotWriter:
    """Commits snapshots to a store. One thread owns it."""

    def __init__(self, store: StoreWriter, *, finite: bool) -> None:
        """With `finite`, parameters that are NaN or infinite are refused."""
        self._store = store
        self._finite = finite
        self._metrics = MetricReader()
        self._frozen = FrozenVariables()

    def write(self, snapshot: Snapshot) -> Version:
        """Returns the version as it was committed. Raises as `StoreWriter.commit` does, and StructureError."""
        if snapshot.problem:
            raise StructureError(snapshot.problem)
        self._store.add_graph(snapshot.version.graph, snapshot.graph)
        version = replace(snapshot.version, metrics=self._metrics.read(snapshot.metrics))
        tensors = snapshot.tensors()

        def let_go(name: str) -> None:  # so that training can update it in place
            del tensors[name]
            snapshot.let_go(name)

        version = self._store.commit(
            version, tensors, unchanged=self._frozen.names(tensors), finite=self._finite, copied=let_go
        )
        self._frozen.published(snapshot, tensors, self._store.unchanged)
        return version


@runtime_checkable
class Source(Protocol):
    """Where the values of a publication come from, and the graph that they are for."""

    digest: str
    content: bytes  # of the graph file; another one after a `pin` that found another structure

    def pin(self, values: Any = None) -> dict[str, Any]:
        """The values of this step by their keys in a checkpoint, so that no later step changes them.

        `values` is what the publisher's caller gave, or None. Raises StructureError where the structure has changed and
        cannot be published.
        """


def _is_at(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> bool:
    return bool(one.__array_interface__["data"] == other.__array_interface__["data"])
