"""VariableReader: the values that many variables have now, read in one call of TensorFlow."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

# There is nothing to optimise: without that, the first call is like any other.
_AS_WRITTEN = config_pb2.ConfigProto(
    graph_options=config_pb2.GraphOptions(
        rewrite_options=rewriter_config_pb2.RewriterConfig(disable_meta_optimizer=True)
    )
).SerializeToString()
_HOST = "/device:CPU:0"
_ON_THIS_THREAD = "SINGLE_THREADED_EXECUTOR"  # others would hand some reads to threads that may have no processor


class VariableReader:
    """Reads variables without copying them. One thread owns it.

    A value is the variable's own buffer, as `value()` gives it. A call of TensorFlow costs microseconds, and gives
    Python's lock away, which comes back when another thread, such as one that writes, is done with it: so those in the
    host's memory are read together, by one call of a function. It would move the values of others to the host:
    variables of accelerators are read one by one, and so are those of distribution strategies, which may have to be
    added up.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._types: list[tf.DType] | None = None
        self._choose(variables)
        self(variables)  # the first call is the slowest

    def __call__(self, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
        """The values of these variables; the same ones as in the call before cost the least."""
        if len(variables) != len(self._variables) or not all(map(operator.is_, variables, self._variables)):
            self._choose(variables)
        values: list[Any] = [None] * len(variables)
        if self._handles:
            with tf.device(_HOST):
                found = tf.raw_ops.StatefulPartitionedCall(
                    args=self._handles,
                    Tout=self._types,
                    f=self._function,
                    config_proto=_AS_WRITTEN,
                    executor_type=_ON_THIS_THREAD,
                )
            for at, value in zip(self._together, found, strict=True):
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
            for at, one in enumerate(variables)
            if not isinstance(one, tf.distribute.DistributedValues) and one.handle.device == host
        ]
        self._alone = sorted({*range(len(variables))}.difference(self._together))
        self._handles = [variables[at].handle for at in self._together]
        types = [variables[at].dtype for at in self._together]
        if types != self._types:
            self._types, self._function = types, _function(types)


def _function(types: Sequence[tf.DType]) -> Any:
    """What takes the handles of variables of these dtypes, and gives their values."""

    def read(*handles: tf.Tensor) -> list[tf.Tensor]:
        return [_read(one, dtype) for one, dtype in zip(handles, types, strict=True)]

    # made sooner than a tf.function of as many arguments
    return tf.compat.v1.wrap_function(read, [tf.TensorSpec([], tf.resource)] * len(types))


def _read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    # A variable of which rows were looked up or updated is copied by whoever reads it; here it becomes like others.
    with tf.control_dependencies([tf.raw_ops.DisableCopyOnRead(resource=handle)]):
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
