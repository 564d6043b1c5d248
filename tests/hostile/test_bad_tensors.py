"""Tensors that cannot be what they say, as stock clients could send them: codes, texts, and a server unharmed."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import predict_pb2

from tests.support.http import Named, Plain
from tests.support.published import Publisher
from tests.support.running import LONG, Running, refused, request

FLOAT, INT64, STRING = types_pb2.DT_FLOAT, types_pb2.DT_INT64, types_pb2.DT_STRING


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Models `plain` in version 4 and `named` in 5."""
    folder = tmp_path_factory.mktemp("two")
    running = Running(folder / "plain", folder / "named")
    publishers = [Publisher(folder / name) for name in ("plain", "named")]
    for publisher, number, kind in zip(publishers, (4, 5), (Plain, Named), strict=True):
        publisher.publish(number, kind=kind)
        running.server.models.follower(publisher.path.name).sync(timeout=LONG)
    yield running
    for publisher in publishers:
        publisher.close()
    running.drain()
    running.close()


def tensor(dtype: int, *shape: int, unknown_rank: bool = False, **fields: Any) -> tensor_pb2.TensorProto:
    proto = tensor_pb2.TensorProto(dtype=dtype, **fields)
    proto.tensor_shape.unknown_rank = unknown_rank
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


def asking(model: str, **inputs: tensor_pb2.TensorProto) -> predict_pb2.PredictRequest:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    for name, proto in inputs.items():
        message.inputs[name].CopyFrom(proto)
    return message


def plain(proto: tensor_pb2.TensorProto) -> predict_pb2.PredictRequest:
    return asking("plain", x=proto)


def named(count: tensor_pb2.TensorProto, said: tensor_pb2.TensorProto) -> predict_pb2.PredictRequest:
    return asking("named", count=count, said=said)


ONE, A = tensor(INT64, 1, int64_val=[1]), tensor(STRING, 1, string_val=[b"a"])


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (plain(tensor(FLOAT, 1, 2, tensor_content=b"1234567")), "expected 8 bytes of tensor_content, found 7"),
        (plain(tensor(FLOAT, 1, 2, tensor_content=b"123456789")), "expected 8 bytes of tensor_content, found 9"),
        (plain(tensor(FLOAT, 1, 2, float_val=[1.0, 2.0, 3.0])), "input 'x' float32 [1, 2]: expected 2 values, found 3"),
        (plain(tensor(FLOAT, 1 << 30, 2)), "expected at most 67108864 bytes of repeated values, found 8589934592"),
        (plain(tensor(FLOAT, 1, 2, double_val=[1.0])), "expected values in float_val, found values in double_val"),
        (plain(tensor(FLOAT, -1, 2, float_val=[1.0, 2.0])), "shape: expected dimensions of 0 or more, found [-1, 2]"),
        (plain(tensor(FLOAT, unknown_rank=True)), "shape: expected dimensions of 0 or more, found an unknown rank"),
        (plain(tensor(FLOAT, 1 << 40, 2, float_val=[1.0])), "expected at most 67108864 bytes of repeated values"),
        (plain(tensor(FLOAT, 1 << 62, 2, float_val=[1.0])), "input 'x', shape: expected fewer elements"),
        (plain(tensor(FLOAT, *[1] * 200, float_val=[1.0])), "expected at most 32 dimensions, found 200"),
        (plain(tensor(STRING, 1, 2, string_val=[b"a", b"b"])), "expected float32 [?, 2], found string [1, 2]"),
        (plain(tensor(0, 1, 2)), "dtype: expected a dtype of numbers, booleans or strings, found dtype 0"),
        (
            plain(tensor(types_pb2.DT_RESOURCE, 1, 2)),
            "expected a dtype of numbers, booleans or strings, found resource",
        ),
        (
            plain(tensor(types_pb2.DT_FLOAT_REF, 1, 2)),
            "expected a dtype of numbers, booleans or strings, found dtype 101",
        ),
        (asking("plain"), "inputs: expected 'x', found none"),
        (asking("named", count=ONE), "inputs: expected 'count', 'said', found 'count'"),
        (named(ONE, tensor(STRING, 1, tensor_content=b"a")), "expected 1 strings in tensor_content, after"),
        (named(ONE, tensor(STRING, 3, string_val=[b"a", b"b", b"c", b"d"])), "expected 3 values, found 4"),
        (named(tensor(types_pb2.DT_INT32, 1, int_val=[1]), A), "input 'count': expected int64 [?], found int32 [1]"),
    ],
    ids=[str(at) for at in range(19)],
)
def test_a_tensor_that_cannot_be_is_the_callers_fault(
    two: Running, message: predict_pb2.PredictRequest, text: str
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code, details = refused(two.prediction_service.Predict, message)
    assert (code, text in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    good = two.prediction_service.Predict(request("plain", x=np.ones([1, 2], np.float32)), timeout=LONG)
    assert list(good.outputs["y"].float_val) == [4.0, 4.0]


def test_both_ways_to_send_values_are_read(two: Running) -> None:
    for proto in (
        tensor(FLOAT, 1, 2, float_val=[1.0, 2.0]),
        tensor(FLOAT, 1, 2, tensor_content=np.array([1.0, 2.0], "<f4").tobytes()),
    ):
        assert list(two.prediction_service.Predict(plain(proto), timeout=LONG).outputs["y"].float_val) == [4.0, 8.0]


def test_no_value_stands_for_zeros(two: Running) -> None:
    answer = two.prediction_service.Predict(plain(tensor(FLOAT, 2, 2)), timeout=LONG)
    assert list(answer.outputs["y"].float_val) == [0.0] * 4


def test_one_value_may_stand_for_all_that_follow(two: Running) -> None:
    answer = two.prediction_service.Predict(plain(tensor(FLOAT, 2, 2, float_val=[1.0, 3.0])), timeout=LONG)
    assert list(answer.outputs["y"].float_val) == [4.0, 12.0, 12.0, 12.0]
