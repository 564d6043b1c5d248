"""Answers: outputs as the tensors that clients read, and the trailing metadata that names version and age."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from inferencer.protocols.tfs.predict import encoded
from inferencer.transport.predictions import trailers
from paramsync.rpc import tensor_proto
from tests.support.questions import resident
from tests.support.written import version

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


NOW = 1000.0


def test_an_answer_names_its_version_and_its_age_in_whole_milliseconds() -> None:
    one = replace(resident(420), version=replace(version(420), step_done_at=998.7655))
    assert trailers(one, NOW) == (("paramsync-version", "420"), ("paramsync-age-ms", "1234"))


@pytest.mark.parametrize(("committed", "expected"), [(999.0, (("paramsync-age-ms", "1000"),)), (None, ())])
def test_the_age_counts_from_when_it_was_visible_where_nobody_knows_more(
    committed: float | None, expected: tuple[tuple[str, str], ...]
) -> None:
    one = replace(resident(7), version=replace(version(7), step_done_at=0.0, committed_at=committed))
    assert trailers(one, NOW) == (("paramsync-version", "7"), *expected)


def test_a_version_from_the_future_is_of_no_age() -> None:
    one = replace(resident(7), version=replace(version(7), step_done_at=NOW + 5))
    assert dict(trailers(one, NOW))["paramsync-age-ms"] == "0"


def test_of_a_connection_every_part_is_named_and_the_oldest_counts() -> None:
    parts = (("encoder", replace(version(420), step_done_at=990.0)), ("head", replace(version(77), step_done_at=999.0)))
    assert trailers(replace(resident(77), parts=parts), NOW) == (
        ("paramsync-version", "encoder=420,head=77"),
        ("paramsync-age-ms", "10000"),
    )
