"""Lookup tables of graph files: packs keys and values into a file, and fills new tables from a file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from paramsync import dtypes
from paramsync.errors import GraphError, InputError
from paramsync.rpc import tensor_proto
from paramsync.v1 import graph_pb2, serving_pb2

MAX_BYTES = 512 << 20
"""The most bytes that all tables of one graph file may take."""


def pack(node: str, keys: tf.Tensor, values: tf.Tensor) -> graph_pb2.Table:
    """Return a table for a graph file. `node` is the placeholder for the table's handle.

    Each key has one value, a scalar or a tensor. Entries are sorted by key, so that equal tables have equal bytes.
    """
    at = np.argsort(np.asarray(keys), kind="stable")  # without eager execution, keys are already arrays
    packed = [
        tensor_proto.from_array(np.asarray(column)[at]).SerializeToString(deterministic=True)
        for column in (keys, values)
    ]
    return graph_pb2.Table(node=node, keys=packed[0], values=packed[1])


class Contents:
    """The keys and values of a table of a graph file."""

    def __init__(self, table: graph_pb2.Table) -> None:
        """Raises GraphError if no table can have these contents."""
        try:
            tensors = {name: serving_pb2.Tensor.FromString(getattr(table, name)) for name in ("keys", "values")}
            arrays = tensor_proto.to_arrays(tensors, f"table {table.node!r},")
        except (InputError, DecodeError) as error:
            raise GraphError(f"the table {table.node!r} is not readable: {error}") from error
        self.keys, self.values = arrays["keys"], arrays["values"]
        self._node = table.node
        if self.keys.ndim != 1 or self.values.ndim == 0 or len(self.keys) != len(self.values):
            raise GraphError(
                f"the table {table.node!r}: expected a value for each key,"
                f" found keys {list(self.keys.shape)} and values {list(self.values.shape)}"
            )

    @property
    def dtypes(self) -> dict[str, tf.DType]:
        """The dtypes as arguments of the ops that make tables."""
        return {"key_dtype": tf.as_dtype(_name(self.keys)), "value_dtype": tf.as_dtype(_name(self.values))}

    def tensors(self) -> dict[str, tf.Tensor]:
        """The contents as arguments of the ops that fill tables."""
        kinds = self.dtypes
        return {
            "keys": tf.constant(self.keys, kinds["key_dtype"]),
            "values": tf.constant(self.values, kinds["value_dtype"]),
        }

    def digest(self) -> str:
        whole = hashlib.sha256()
        for array in (self.keys, self.values):
            whole.update(f"{_name(array)} {array.shape}".encode())
            for element in array.flat if array.dtype == object else (array,):
                data = element if isinstance(element, bytes) else np.ascontiguousarray(element).tobytes()
                whole.update(len(data).to_bytes(8, "little") + data)
        return whole.hexdigest()

    def fill(self) -> tf.Tensor:
        """Make a table with these contents. The table lives as long as the returned handle. Raises GraphError."""
        try:
            with tf.device("CPU:0"):
                if self.values.ndim > 1:
                    shape = self.values.shape[1:]
                    handle = tf.raw_ops.AnonymousMutableHashTableOfTensors(**self.dtypes, value_shape=shape)
                    tf.raw_ops.LookupTableImportV2(table_handle=handle, **self.tensors())
                elif len(self.keys):
                    handle = tf.raw_ops.AnonymousHashTable(**self.dtypes)
                    tf.raw_ops.InitializeTableV2(table_handle=handle, **self.tensors())
                else:  # a HashTable cannot be empty
                    handle = tf.raw_ops.AnonymousMutableHashTable(**self.dtypes)
                return handle
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise GraphError(f"the table {self._node!r} cannot be made: {error}") from error


def fill(tables: Sequence[Contents]) -> list[tf.Tensor]:
    """Make tables with these contents, and return their handles.

    If the caller's thread is building a graph, ops cannot run on this thread, so a new thread makes the tables. Returns
    an empty list in a program without eager execution, because such a program cannot call a graph.
    """
    if tf.executing_eagerly() or not tables:
        return [contents.fill() for contents in tables]
    with ThreadPoolExecutor(1) as another:
        return another.submit(
            lambda: [contents.fill() for contents in tables] if tf.executing_eagerly() else []
        ).result()


def _name(array: np.ndarray) -> str:
    code = dtypes.from_numpy(array.dtype)
    return dtypes.name(code) if code else str(array.dtype)
