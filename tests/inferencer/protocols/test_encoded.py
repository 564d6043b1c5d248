"""Outputs as the tensors that clients read."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from inferencer.protocols.tfs.predict import encoded
from paramsync.rpc import tensor_proto

NUMBERS = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def written(array: np.ndarray) -> tensor_pb2.TensorProto:
    return tensor_pb2.TensorProto.FromString(b"".join(encoded(array)))


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool", "complex64", "complex128", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (3, 0, 2)])
def test_every_dtype_is_written_as_tensorflow_and_our_client_read_it(dtype: str, shape: tuple[int, ...]) -> None:
    kind = tf.dtypes.as_dtype(dtype)
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind.as_numpy_dtype)
    proto = written(tf.constant(values).numpy())
    for found in (tf.make_ndarray(proto), tensor_proto.to_arrays({"x": proto}, "output")["x"]):
        assert (found.dtype, found.shape, found.tolist()) == (values.dtype, shape, values.tolist())


def test_strings_are_written() -> None:
    values = np.array([["a", "\N{SNOWMAN}"], ["", "d"]])
    assert tf.make_ndarray(written(tf.constant(values).numpy())).tolist() == np.char.encode(values, "utf8").tolist()
    assert written(np.array(b"alone", object)).string_val[0] == b"alone"
