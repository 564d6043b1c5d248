"""The consistency point: all parameters of one step, pinned without copying them. Knows no TensorFlow by itself."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from paramsync.errors import SettingsError, StructureError
from paramsync.publishing.device import fetch
from paramsync.tensorbundle.index import OBJECT_GRAPH
from paramsync.version import Version

if TYPE_CHECKING:
    import tensorflow as tf

    from paramsync.graphs.capturing import Capture

_log = logging.getLogger("paramsync.trainer")
Averages: TypeAlias = "Callable[[tf.Variable], tf.Variable | None]"
"""The average that is published in place of a variable; None where there is none."""


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
        """What a checkpoint holds, by key. On the CPU these are the pinned buffers; from a GPU they are fetched.

        What was fetched is let go of, so that of a device's memory a snapshot holds at most the parameters once more,
        and a piece, for as long as fetching takes.
        """
        return fetch(self.values, fetched=self.let_go)

    def let_go(self, name: str) -> None:
        """This value is written. May be called on any thread."""
        self.values.pop(name, None)


class FrozenVariables:
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
            if name not in self._rewritten and "CPU" in getattr(snapshot.values.get(name), "backing_device", "")
        }


@runtime_checkable
class Source(Protocol):
    """Where the values of a publication come from, and the graph that they are for."""

    digest: str
    content: bytes  # of the graph file, which is another one after a `pin` that found another structure

    def pin(self, values: Any = None) -> dict[str, Any]:
        """The values of this step by their keys in a checkpoint, so that no later step changes them.

        `values` is what the publisher's caller gave, None where nothing. Raises StructureError where the structure is
        another one and cannot be published.
        """


class LiveVariables:
    """The variables of a model, or averages of them, as what is published."""

    def __init__(self, capture: Capture, averages: Averages | None = None) -> None:
        """Raises SettingsError for a graph of a file, which has no variables, and what `pin` does."""
        self._averages = averages
        self._problem = ""
        self._take(capture)
        from paramsync.publishing.batched_read import VariableReader  # here: other sources need no TensorFlow

        self._read = VariableReader(self._published())

    def _take(self, capture: Capture) -> None:
        if len(capture.variables) != len(capture.graph.parameters):
            raise SettingsError(
                "what was captured has no live variables, as that of a file: capture the model itself, or put its graph"
                " into the store and publish values by name with Publisher.of_graph"
            )
        self.digest = capture.graph.digest
        self.content = capture.graph.to_bytes()
        self._names = [one.name for one in capture.graph.parameters]
        self._objects = np.array(capture.object_graph, dtype=object) if capture.object_graph else None
        self._variables = capture.variables
        self._origin = capture.origin
        self._parts = () if capture.origin is None else capture.origin.parts

    def pin(self, values: Any = None) -> dict[str, Any]:
        """The value of every captured variable, or of its average where there is one, by its key in a checkpoint.

        To be called on the thread that updates the variables, between two steps: that is what makes them of one step.
        Takes microseconds a variable, whatever its size, and as long as capturing does where there are other variables
        or layers than at the last call. Raises SettingsError for an average that cannot stand for its variable,
        StructureError where what there is now cannot be captured.
        """
        if values is not None:
            raise SettingsError("values: they are the variables' own here; only Publisher.of_graph is given any")
        self._follow()
        pinned: dict[str, Any] = dict(zip(self._names, self._read(self._published()), strict=True))
        if self._objects is not None:
            pinned[OBJECT_GRAPH] = self._objects
        return pinned

    def _follow(self) -> None:
        """Capture what has other variables or layers now; what cannot be captured is tried again once they change."""
        if self._origin is None:
            return
        parts = self._origin.now()
        if len(parts) != len(self._parts) or not all(map(operator.is_, parts, self._parts)):
            began, self._parts, self._problem = time.monotonic(), parts, ""
            try:
                self._take(self._origin.again())
            except Exception as error:  # noqa: BLE001, of the model's own code too: training goes on
                self._problem = (
                    f"{type(self._origin.root).__name__} has other variables or layers than when it was captured, and"
                    f" cannot be captured as it is now: {error}"
                )
            else:
                took = time.monotonic() - began
                _log.info("other variables or layers are published from now on: captured anew in %.1f s", took)
        if self._problem:
            raise StructureError(self._problem)

    def _published(self) -> Sequence[tf.Variable]:
        averages = self._averages
        return self._variables if averages is None else [_averaged(one, averages) for one in self._variables]


def _averaged(variable: tf.Variable, averages: Averages) -> tf.Variable:
    average = averages(variable)
    if average is None:
        return variable
    if (average.shape, average.dtype) != (variable.shape, variable.dtype):
        expected, found = (f"{one.dtype.name} {list(one.shape)}" for one in (variable, average))
        raise SettingsError(f"the average of {variable.name}: expected {expected}, found {found}")
    return average


def _is_at(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> bool:
    return bool(one.__array_interface__["data"] == other.__array_interface__["data"])
