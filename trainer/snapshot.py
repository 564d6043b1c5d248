"""The consistency point: all parameters of one step, pinned without copying them. Knows no TensorFlow by itself."""

from __future__ import annotations

from collections.abc import Mapping
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
