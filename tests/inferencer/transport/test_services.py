"""What stock clients see, over real gRPC: answers, versions, and the status codes of TensorFlow Serving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    predict_pb2,
)

from inferencer.transport.errors import status_of
from tests.support.published import PARAMETERS, Lookup, Publisher, proven
from tests.support.running import LONG, Running, refused, request, seen, synced

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of model `m` with version 7, for tests that leave it as they find it."""
    folder = tmp_path_factory.mktemp("shared")
    with closing(Publisher(folder / "m")) as publisher, closing(Running(folder / "m")) as running:
        publisher.publish(7)
        synced(running)
        yield running


def test_an_answer_names_model_version_and_signature(shared: Running) -> None:
    answer = shared.prediction_service.Predict(request(x=np.ones([3, 2], np.float32)), timeout=LONG)
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 7, "serving_default")
    assert proven(seen(answer), 7)
    assert tf.make_ndarray(answer.outputs["total"]).tolist() == [14.0 * PARAMETERS] * 3


def test_a_resident_version_can_be_asked_for_by_number(served: Running, publisher: Publisher) -> None:
    publisher.publish(8)
    synced(served)
    for number in (7, 8):
        answer = served.prediction_service.Predict(request(version=number), timeout=LONG)
        assert (answer.model_spec.version.value, proven(seen(answer), number)) == (number, True)
    code, text = refused(served.prediction_service.Predict, request(version=6))
    assert code is Code.NOT_FOUND
    assert "version 6 of model 'm' is not there; there are: 7, 8" in text


def test_version_0_is_what_serves_where_there_is_no_such_version(shared: Running) -> None:
    answer = shared.prediction_service.Predict(request(version=0), timeout=LONG)
    assert (answer.model_spec.version.value, proven(seen(answer), 7)) == (7, True)


def test_while_nothing_serves_the_answer_is_unavailable_with_the_store(running: Running, tmp_path: Path) -> None:
    code, text = refused(running.prediction_service.Predict, request())
    assert code is Code.UNAVAILABLE
    assert str(tmp_path / "m") in text


def change(message: predict_pb2.PredictRequest, **fields: Any) -> predict_pb2.PredictRequest:
    for name, value in fields.items():
        setattr(message.model_spec, name, value)
    return message


def filtered(*names: str) -> predict_pb2.PredictRequest:
    message = request()
    message.output_filter.extend(names)
    return message


def cut_short() -> predict_pb2.PredictRequest:
    message = request()
    message.inputs["x"].tensor_content = bytes(7)
    return message


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (predict_pb2.PredictRequest(), Code.INVALID_ARGUMENT, "model_spec: expected the name of a model, found none"),
        (request("other"), Code.NOT_FOUND, "model 'other' is not served here; served: 'm'"),
        (request("n" * 100_000), Code.NOT_FOUND, "model '" + "n" * 100),
        (change(request(), signature_name="train"), Code.FAILED_PRECONDITION, "signature 'train' does not exist"),
        (change(request(), version_label="stable"), Code.NOT_FOUND, "label 'stable' of model 'm' is not there"),
        (filtered("logits"), Code.INVALID_ARGUMENT, "output filter: expected some of 'seen', 'total', found 'logits'"),
        (filtered("seen", "seen"), Code.INVALID_ARGUMENT, "expected each output once, found 'seen' more than once"),
        (request(y=1.0), Code.INVALID_ARGUMENT, "inputs: expected 'x', found 'y'"),
        (request(x=np.ones([1, 2], np.float32), y=1.0), Code.INVALID_ARGUMENT, "inputs: expected 'x', found 'x', 'y'"),
        (request(x=np.ones([1, 2])), Code.INVALID_ARGUMENT, "expected float32 [?, 2], found float64 [1, 2]"),
        (request(x=np.ones([2], np.float32)), Code.INVALID_ARGUMENT, "expected float32 [?, 2], found float32 [2]"),
        (cut_short(), Code.INVALID_ARGUMENT, "expected 8 bytes of tensor_content, found 7"),
        (request(x=[["a", "b"]]), Code.INVALID_ARGUMENT, "expected float32 [?, 2], found string [1, 2]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_request_gets_the_code_of_tensorflow_serving_and_both_sides(
    shared: Running, message: predict_pb2.PredictRequest, code: grpc.StatusCode, text: str
) -> None:
    found, details = refused(shared.prediction_service.Predict, message)
    assert found is code
    assert text in details
    assert "Traceback" not in details
    assert shared.prediction_service.Predict(request(), timeout=LONG).model_spec.version.value == 7


def test_what_a_kernel_refuses_is_the_callers_fault_in_one_line(running: Running, publisher: Publisher) -> None:
    publisher.publish(7, kind=Lookup)
    synced(running)
    assert proven(seen(running.prediction_service.Predict(request(rows=[5]), timeout=LONG)), 7)
    code, text = refused(running.prediction_service.Predict, request(rows=[64]))
    assert code is Code.INVALID_ARGUMENT
    assert "64 is not in [0, 64)" in text
    assert "\n" not in text


def test_bytes_that_are_no_message_are_the_callers_fault(shared: Running, caplog: pytest.LogCaptureFixture) -> None:
    expected = (Code.INVALID_ARGUMENT, "request: expected a {}, found 100 bytes that are none")
    for channel, service, method, kind in (
        (shared.predictions, "tensorflow.serving.PredictionService", "Predict", "tensorflow.serving.PredictRequest"),
        (shared.control, "paramsync.v1.Sync", "Pin", "paramsync.v1.PinRequest"),
        (shared.control, "grpc.health.v1.Health", "Check", "grpc.health.v1.HealthCheckRequest"),
    ):
        call = channel.unary_unary(f"/{service}/{method}", None, None)
        assert refused(call, b"\xff" * 100) == (expected[0], expected[1].format(kind))
    assert caplog.records == []
    assert shared.prediction_service.Predict(request(), timeout=LONG).model_spec.version.value == 7


def test_an_error_nobody_foresaw_shows_the_client_nothing() -> None:
    assert status_of(ZeroDivisionError("secret")) == (Code.INTERNAL, "internal error; the server's log has it")
