"""The consistency point: all parameters of one step, pinned without copying them. Knows no TensorFlow by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np
import numpy.typing as npt

from paramsync import keys
from paramsync.version import Version

if TYPE_CHECKING:
    from paramsync.graphs.capture import Capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The values of one step, until they are written.

    `values` are tensors that share the variables' buffers: TensorFlow's variables are copy-on-write, so an update after
    the snapshot goes into a new buffer. That costs memory for as long as the snapshot lives. `metrics` may be tensors
    that are still being computed; they are read when the snapshot is written, not on the training thread.
    """

    version: Version
    values: Mapping[str, Any]
    metrics: Mapping[str, SupportsFloat]

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """What a checkpoint holds, by key. On the CPU these are the pinned buffers; from a GPU they are fetched."""
        return {name: np.asarray(value) for name, value in self.values.items()}


class Frozen:
    """Which variables are known to have the values published last, without looking at them. One thread owns it.

    TensorFlow's variables are copy-on-write: as long as somebody holds on to the buffer that was published, an update
    goes into another one, so that a variable still in this buffer still has these values. To hold on costs memory where
    the variable is updated, and one update its place: it is done only for variables that the store found unchanged, and
    given up where one turns out to be rewritten with the values that it had. So what is held beside the variables' own
    buffers is at most that of variables that were frozen and are trained since the last publication.
    """

    def __init__(self) -> None:
        self._held: dict[str, npt.NDArray[np.generic]] = {}
        self._rewritten: set[str] = set()

    def names(self, tensors: Mapping[str, npt.NDArray[np.generic]]) -> set[str]:
        """Those of a snapshot's tensors that are where they were when `published` was called."""
        return {name for name, held in self._held.items() if name in tensors and _is_at(tensors[name], held)}

    def published(
        self, snapshot: Snapshot, tensors: Mapping[str, npt.NDArray[np.generic]], unchanged: Collection[str]
    ) -> None:
        """These tensors were committed; `unchanged` are those that the store found to be the same as before."""
        self._rewritten.update(set(self._held).intersection(unchanged) - self.names(tensors))
        self._held = {
            name: tensors[name]
            for name in unchanged
            if name not in self._rewritten and "CPU" in getattr(snapshot.values[name], "backing_device", "")
        }


def pin(capture: Capture) -> dict[str, Any]:
    """The value of every captured variable, by its key in a checkpoint.

    To be called on the thread that updates the variables, between two steps: that is what makes them of one step. Takes
    microseconds a variable, whatever its size.
    """
    # value(), not read_value(): the same buffer without an Identity operation on top, at half the cost
    values: dict[str, Any] = {
        spec.name: variable.value() for spec, variable in zip(capture.graph.parameters, capture.variables, strict=True)
    }
    values[keys.OBJECT_GRAPH] = np.array(capture.object_graph, dtype=object)
    return values


def _is_at(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> bool:
    return bool(one.__array_interface__["data"] == other.__array_interface__["data"])
