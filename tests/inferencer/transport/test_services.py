"""What stock clients see, over real gRPC: answers, versions, and the status codes of TensorFlow Serving."""

from __future__ import annotations

import resource
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import (
    predict_pb2,
)

from inferencer.transport.errors import status_of
from paramsync.errors import SyncError
from paramsync.rpc import tensor_proto
from paramsync.v1 import sync_pb2 as pb
from tests.support.published import PARAMETERS, Lookup, Publisher, proven
from tests.support.running import LONG, LocalRunning, refused, request, seen, synced

Code = grpc.StatusCode


def test_an_answer_names_model_version_and_signature(served: LocalRunning) -> None:
    answer = served.prediction_service.Predict(request(x=np.ones([3, 2], np.float32)), timeout=LONG)
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 7, "serving_default")
    assert proven(seen(answer), 7)
    assert tf.make_ndarray(answer.outputs["total"]).tolist() == [14.0 * PARAMETERS] * 3


def test_an_output_filter_is_kept_to(served: LocalRunning) -> None:
    message = request()
    message.output_filter.append("total")
    assert set(served.prediction_service.Predict(message, timeout=LONG).outputs) == {"total"}


def test_a_resident_version_can_be_asked_for_by_number(served: LocalRunning, publisher: Publisher) -> None:
    publisher.publish(8)
    synced(served)
    for number in (7, 8):
        answer = served.prediction_service.Predict(request(version=number), timeout=LONG)
        assert (answer.model_spec.version.value, proven(seen(answer), number)) == (number, True)
    code, text = refused(served.prediction_service.Predict, request(version=6))
    assert code is Code.NOT_FOUND
    assert "version 6 of model 'm' is not there; there are: 7, 8" in text


def test_version_0_is_what_serves_where_there_is_no_such_version(served: LocalRunning, publisher: Publisher) -> None:
    answer = served.prediction_service.Predict(request(version=0), timeout=LONG)
    assert (answer.model_spec.version.value, proven(seen(answer), 7)) == (7, True)


def test_version_0_is_itself_where_there_is_one(running: LocalRunning, publisher: Publisher) -> None:
    for number in (0, 7):
        publisher.publish(number)
        synced(running)
    for number in (0, 7):
        answer = running.prediction_service.Predict(request(version=number), timeout=LONG)
        assert (answer.model_spec.version.value, proven(seen(answer), number)) == (number, True)


def test_while_nothing_serves_the_answer_is_unavailable_with_the_store(running: LocalRunning, tmp_path: Path) -> None:
    code, text = refused(running.prediction_service.Predict, request())
    assert code is Code.UNAVAILABLE
    assert str(tmp_path / "m") in text


def change(message: predict_pb2.PredictRequest, **fields: Any) -> predict_pb2.PredictRequest:
    for name, value in fields.items():
        setattr(message.model_spec, name, value)
    return message


def with_input(name: str) -> predict_pb2.PredictRequest:
    message = request()
    message.inputs[name].CopyFrom(tf.make_tensor_proto(1.0))
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
    served: LocalRunning, message: predict_pb2.PredictRequest, code: grpc.StatusCode, text: str
) -> None:
    found, details = refused(served.prediction_service.Predict, message)
    assert found is code
    assert text in details
    assert "Traceback" not in details
    assert served.prediction_service.Predict(request(), timeout=LONG).model_spec.version.value == 7


def test_what_a_kernel_refuses_is_the_callers_fault_in_one_line(running: LocalRunning, publisher: Publisher) -> None:
    publisher.publish(7, kind=Lookup)
    synced(running)
    assert proven(seen(running.prediction_service.Predict(request(rows=[5]), timeout=LONG)), 7)
    code, text = refused(running.prediction_service.Predict, request(rows=[64]))
    assert code is Code.INVALID_ARGUMENT
    assert "64 is not in [0, 64)" in text
    assert "\n" not in text


@pytest.mark.parametrize("name", ["n" * 100_000, "\N{SNOWMAN}" * 100_000])
def test_of_a_name_without_end_the_answer_repeats_the_beginning(served: LocalRunning, name: str) -> None:
    for message, code in (
        (request(name), Code.NOT_FOUND),
        (change(request(), signature_name=name), Code.FAILED_PRECONDITION),
        (with_input(name), Code.INVALID_ARGUMENT),
        (filtered(name), Code.INVALID_ARGUMENT),
    ):
        found, text = refused(served.prediction_service.Predict, message)
        assert found is code
        assert name[:100] in text
        assert text.endswith("...")


def test_an_empty_tensor_beyond_any_address_is_the_callers_fault(served: LocalRunning) -> None:
    message = request()
    message.inputs["x"].CopyFrom(tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT))
    for size in (0, 1 << 61):
        message.inputs["x"].tensor_shape.dim.add(size=size)
    code, text = refused(served.prediction_service.Predict, message)
    assert code is Code.INVALID_ARGUMENT
    assert "input 'x', shape: expected fewer elements" in text


def test_bytes_that_are_no_message_are_the_callers_fault(
    served: LocalRunning, caplog: pytest.LogCaptureFixture
) -> None:
    expected = (Code.INVALID_ARGUMENT, "request: expected a {}, found 100 bytes that are none")
    for channel, service, method, kind in (
        (served.predictions, "tensorflow.serving.PredictionService", "Predict", "tensorflow.serving.PredictRequest"),
        (served.control, "paramsync.v1.Sync", "Pin", "paramsync.v1.PinRequest"),
        (served.control, "grpc.health.v1.Health", "Check", "grpc.health.v1.HealthCheckRequest"),
    ):
        call = channel.unary_unary(f"/{service}/{method}", None, None)
        assert refused(call, b"\xff" * 100) == (expected[0], expected[1].format(kind))
    assert caplog.records == []
    assert served.prediction_service.Predict(request(), timeout=LONG).model_spec.version.value == 7


def test_messages_beyond_four_megabytes_are_normal_and_beyond_the_limit_refused(served: LocalRunning) -> None:
    rows = 1 << 20  # 8 MB in, 4 MB out
    answer = served.prediction_service.Predict(request(x=np.ones([rows, 2], np.float32)), timeout=LONG)
    assert len(answer.outputs["total"].float_val) == rows
    code, _ = refused(served.prediction_service.Predict, request(x=np.ones([9 * rows, 2], np.float32)))
    assert code is Code.RESOURCE_EXHAUSTED


def test_nan_in_an_input_is_the_callers_business(served: LocalRunning) -> None:
    answer = served.prediction_service.Predict(request(x=np.full([1, 2], np.nan, np.float32)), timeout=LONG)
    assert np.isnan(answer.outputs["total"].float_val[0])


def test_every_answer_is_of_one_version_while_versions_are_committed_all_the_time(
    served: LocalRunning, publisher: Publisher
) -> None:
    stop = threading.Event()
    answers: list[list[predict_pb2.PredictResponse]] = [[], [], []]

    def call(mine: list[predict_pb2.PredictResponse]) -> None:
        while not stop.is_set():
            mine.append(
                served.prediction_service.Predict(request(), timeout=LONG)
            )  # an error ends the thread: see below

    threads = [threading.Thread(target=call, args=(mine,)) for mine in answers]
    for one in threads:
        one.start()
    for step in range(8, 108):
        publisher.publish(step)
        if step % 5 == 0:
            synced(served)
    synced(served)
    alive = [one.is_alive() for one in threads]
    stop.set()
    for one in threads:
        one.join(LONG)
    assert alive == [True] * 3
    assert all(proven(seen(one), one.model_spec.version.value) for mine in answers for one in mine)
    assert served.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).models[0].swaps >= 20
    assert len({one.model_spec.version.value for mine in answers for one in mine}) >= 10
    numbers = [[one.model_spec.version.value for one in mine] for mine in answers]
    assert numbers == [sorted(mine) for mine in numbers]  # no client ever goes back


def test_inputs_are_judged_before_memory_is_spent_on_them(served: LocalRunning) -> None:
    message = request()
    for at in range(20):
        one = message.inputs[f"more {at}"]
        one.CopyFrom(tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[1.5]))
        one.tensor_shape.dim.add(size=tensor_proto.MAX_BYTES // 4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refused(served.prediction_service.Predict, message)[0] is Code.INVALID_ARGUMENT
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < tensor_proto.MAX_BYTES >> 10


def test_an_error_nobody_foresaw_shows_the_client_nothing() -> None:
    assert status_of(ZeroDivisionError("secret")) == (Code.INTERNAL, "internal error; the server's log has it")


def test_an_error_that_is_no_text_can_be_told_all_the_same() -> None:
    assert status_of(SyncError("no \udcff here")) == (Code.FAILED_PRECONDITION, "no \\udcff here")
