"""LiveVariables: publishes the variables of a model, which it reads by one call of TensorFlow."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

from paramsync.errors import SettingsError, StructureError
from paramsync.graphs.capturing import Capture, Origin
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.objects import KeptValues, Place, parts
from paramsync.tensorbundle.index import OBJECT_GRAPH

Averages: TypeAlias = Callable[[tf.Variable], "tf.Variable | None"]
"""Returns the average to publish in place of a variable, or None."""

_log = logging.getLogger("paramsync.trainer")

# Reading variables leaves nothing to optimise, and the optimiser would slow down the first call.
_AS_WRITTEN = config_pb2.ConfigProto(
    graph_options=config_pb2.GraphOptions(
        rewrite_options=rewriter_config_pb2.RewriterConfig(disable_meta_optimizer=True)
    )
).SerializeToString()
_HOST = "/device:CPU:0"
_ON_THIS_THREAD = "SINGLE_THREADED_EXECUTOR"  # other executors use threads, which may wait


class VariableReader:
    """Reads variables without copying them. One thread owns it.

    A value is the variable's own buffer, as `value()` returns it. One function reads all variables in the host's
    memory, because a call for each variable would be slower: each call of TensorFlow costs microseconds and releases
    the GIL. Another thread, such as the writer, may then keep the GIL for a while. Two kinds of variables are
    read one by one: variables of accelerators, because the function would move their values to the host, and variables
    of distribution strategies, whose values may need a sum.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._types: list[tf.DType] | None = None
        self._choose(variables)
        self(variables)  # the first call is the slowest

    def __call__(self, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
        """Return the values of these variables. This is fastest for the variables of the previous call."""
        if len(variables) != len(self._variables) or not all(map(operator.is_, variables, self._variables)):
            self._choose(variables)
        values: list[Any] = [None] * len(variables)
        if self._handles:
            with tf.device(_HOST):
                read = tf.raw_ops.StatefulPartitionedCall(
                    args=self._handles,
                    Tout=self._types,
                    f=self._function,
                    config_proto=_AS_WRITTEN,
                    executor_type=_ON_THIS_THREAD,
                )
            for at, value in zip(self._together, read, strict=True):
                values[at] = value
        for at in self._alone:
            values[at] = variables[at].value()
        return values

    def _choose(self, variables: Sequence[tf.Variable]) -> None:
        with tf.device(_HOST):
            host = tf.zeros([]).device
        self._variables = tuple(variables)
        self._together = [
            at
            for at, variable in enumerate(variables)
            if not isinstance(variable, tf.distribute.DistributedValues) and variable.handle.device == host
        ]
        self._alone = sorted({*range(len(variables))}.difference(self._together))
        self._handles = [variables[at].handle for at in self._together]
        types = [variables[at].dtype for at in self._together]
        if types != self._types:
            self._types, self._function = types, _function(types)


def _function(types: Sequence[tf.DType]) -> Any:
    """Return a TensorFlow function that takes handles of variables of these dtypes and returns their values."""

    def read(*handles: tf.Tensor) -> list[tf.Tensor]:
        return [_read(handle, dtype) for handle, dtype in zip(handles, types, strict=True)]

    # With many arguments, wrap_function builds the function faster than tf.function.
    return tf.compat.v1.wrap_function(read, [tf.TensorSpec([], tf.resource)] * len(types))


def _read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    # By default a read copies a variable if its rows were looked up or updated.
    with tf.control_dependencies([tf.raw_ops.DisableCopyOnRead(resource=handle)]):
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


class LiveVariables:
    """The variables of a model, or averages of them, as a ValueSource."""

    def __init__(self, capture: Capture, averages: Averages | None = None, *, allow_ops: Collection[str] = ()) -> None:
        """Raises SettingsError for a graph from a file, which has no variables, or for a wrong average.

        Raises UnsafeGraphError for ops that followers refuse, unless `allow_ops` names them.
        """
        self._averages = averages
        self._allow_ops = tuple(allow_ops)
        self._problem = ""
        self._idle: set[Place] = set()  # kept values that do not affect the graph
        self._take(capture)
        self._read = VariableReader(self._published())

    def _take(self, capture: Capture) -> None:
        if len(capture.variables) != len(capture.graph.parameters):
            raise SettingsError(
                "what was captured has no live variables, as that of a file: capture the model itself, or put its graph"
                " into the store and publish values by name with Publisher.of_graph"
            )
        content = capture.graph.to_bytes()
        Graph.check_file(content, allowed=self._allow_ops)
        self.digest, self.content = capture.graph.digest, content
        self._names = [parameter.name for parameter in capture.graph.parameters]
        self._objects = np.array(capture.object_graph, dtype=object) if capture.object_graph else None
        self._variables = capture.variables
        self._origin = capture.origin
        if capture.origin is not None:
            self._parts, self._kept = capture.origin.parts, capture.origin.kept

    def pin(self, values: Any = None) -> dict[str, Any]:
        """Return the value of every captured variable, or of its average, by its checkpoint key.

        Call this between two steps, on the thread that updates the variables, so that all values belong to one step.
        Takes microseconds for each variable, of any size. If variables, layers, tables or constants have changed since
        the last call, the model is captured again, which takes longer. Raises SettingsError for an average with another
        shape or dtype than its variable, StructureError if the changed model cannot be captured.
        """
        if values is not None:
            raise SettingsError("values: they are the variables' own here; only Publisher.of_graph is given any")
        self._follow()
        pinned: dict[str, Any] = dict(zip(self._names, self._read(self._published()), strict=True))
        if self._objects is not None:
            pinned[OBJECT_GRAPH] = self._objects
        return pinned

    def _follow(self) -> None:
        """Capture the model again if its variables, layers, tables or constants have changed.

        If the capture fails, it is tried again only after the next change.
        """
        if self._origin is None:
            return
        now, kept = parts(self._origin.root), self._kept.changed(self._idle)
        others = len(now) != len(self._parts) or not all(map(operator.is_, now, self._parts))
        if others or kept:
            self._capture_again(self._origin, now, kept, others=others or bool(self._problem))
        if self._problem:
            raise StructureError(self._problem)

    def _capture_again(self, origin: Origin, now: tuple[Any, ...], kept: set[Place], *, others: bool) -> None:
        what = "other variables or layers" if others else f"another value of {self._kept.shown(kept)}"
        began, self._parts, self._problem, digest = time.monotonic(), now, "", self.digest
        self._kept = KeptValues(origin.root)
        try:
            self._take(origin.again(others))
        except Exception as error:  # noqa: BLE001, of the model's own code too: training goes on
            self._problem = (
                f"{type(origin.root).__name__} has {what} than when it was captured, and"
                f" cannot be captured as it is now: {error}"
            )
            return
        took = time.monotonic() - began
        if self.digest != digest:
            self._idle.clear()
        elif not others:  # a training counter, for example: ignore its later changes
            self._idle |= kept
            _log.info(
                "%s makes no difference to what is published: seen in %.1f s, and not looked at again", what, took
            )
            return
        _log.info("%s published from now on: captured anew in %.1f s", f"{what} {'are' if others else 'is'}", took)

    def _published(self) -> Sequence[tf.Variable]:
        averages = self._averages
        return self._variables if averages is None else [_averaged(variable, averages) for variable in self._variables]


def _averaged(variable: tf.Variable, averages: Averages) -> tf.Variable:
    average = averages(variable)
    if average is None:
        return variable
    if (average.shape, average.dtype) != (variable.shape, variable.dtype):
        expected, found = (f"{checked.dtype.name} {list(checked.shape)}" for checked in (variable, average))
        raise SettingsError(f"the average of {variable.name}: expected {expected}, found {found}")
    return average
