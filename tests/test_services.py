"""What stock clients see, over real gRPC: answers, versions, and the status codes of TensorFlow Serving."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from inferencer.events import MOST_UNREAD
from inferencer.server import Server
from inferencer.services.errors import status_of
from inferencer.services.tensors import encode
from inferencer.services.threads import Threads
from inferencer.settings import ModelSettings, Settings
from paramsync import wire
from paramsync.errors import BusyError, SettingsError, SyncError
from paramsync.v1 import sync_pb2 as pb
from paramsync.v1 import sync_pb2_grpc
from tests.programs import eventually
from tests.published import GATED_OPS, PARAMETERS, Gated, Lookup, Publisher, proven

LONG = 30.0
Code = grpc.StatusCode
_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Running:
    """A real server on ports of its own, in this process, and stock stubs that call it."""

    def __init__(self, *stores: Path, port: int = 0) -> None:
        models = tuple(ModelSettings(name=path.name, store=path) for path in stores)
        self.settings = Settings(models=models, allowed=GATED_OPS, port=port, control_port=0, poll_seconds=60.0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self.server, (self.port, self.control_port) = self.call(self._start)
        except BaseException:
            self.close()
            raise
        self.predictions = grpc.insecure_channel(f"127.0.0.1:{self.port}", _OPTIONS)
        self.control = grpc.insecure_channel(f"127.0.0.1:{self.control_port}", _OPTIONS)
        self.prediction_service = prediction_service_pb2_grpc.PredictionServiceStub(self.predictions)
        self.model_service = model_service_pb2_grpc.ModelServiceStub(self.predictions)
        self.sync = sync_pb2_grpc.SyncStub(self.control)

    async def _start(self) -> tuple[Server, tuple[int, int]]:
        server = Server(self.settings)
        return server, await server.start()

    def call(self, function: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result(LONG)

    def drain(self) -> None:
        self.call(partial(self.server.drain, quiet_seconds=0.01))

    def close(self) -> None:
        for channel in (getattr(self, "predictions", None), getattr(self, "control", None)):
            if channel is not None:
                channel.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LONG)
        self._loop.close()

    def health(self, service: str = "", *, control: bool = False) -> int:
        stub = health_pb2_grpc.HealthStub(self.control if control else self.predictions)
        return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LONG).status)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path / "m")
    yield publisher
    publisher.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "m")
    yield running
    running.drain()
    running.close()


@pytest.fixture
def served(publisher: Publisher, running: Running) -> Running:
    """With version 7."""
    publisher.publish(7)
    synced(running)
    return running


def synced(running: Running, **request: Any) -> list[pb.SyncProgress]:
    return list(running.sync.Sync(pb.SyncRequest(model="m", **request), timeout=LONG))


def request(model: str = "m", *, version: int | None = None, **inputs: Any) -> predict_pb2.PredictRequest:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    if version is not None:
        message.model_spec.version.value = version
    for name, value in (inputs or {"x": np.ones([1, 2], np.float32)}).items():
        message.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return message


def refused(call: Callable[..., Any], message: Any, timeout: float = LONG) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        call(message, timeout=timeout)
    return raised.value.code(), raised.value.details() or ""


def seen(answer: predict_pb2.PredictResponse) -> list[float]:
    return list(answer.outputs["seen"].float_val)


# Predictions ----------------------------------------------------------------------------------------------------------


def test_an_answer_names_model_version_and_signature(served: Running) -> None:
    answer = served.prediction_service.Predict(request(x=np.ones([3, 2], np.float32)), timeout=LONG)
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 7, "serving_default")
    assert proven(seen(answer), 7)
    assert tf.make_ndarray(answer.outputs["total"]).tolist() == [14.0 * PARAMETERS] * 3


def test_an_output_filter_is_kept_to(served: Running) -> None:
    message = request()
    message.output_filter.append("total")
    assert set(served.prediction_service.Predict(message, timeout=LONG).outputs) == {"total"}


def test_a_resident_version_can_be_asked_for_by_number(served: Running, publisher: Publisher) -> None:
    publisher.publish(8)
    synced(served)
    for number in (7, 8):
        answer = served.prediction_service.Predict(request(version=number), timeout=LONG)
        assert (answer.model_spec.version.value, proven(seen(answer), number)) == (number, True)
    code, text = refused(served.prediction_service.Predict, request(version=6))
    assert code is Code.NOT_FOUND
    assert "version 6 of model 'm' is not there; there are: 7, 8" in text


def test_while_nothing_serves_the_answer_is_unavailable_with_the_store(running: Running, tmp_path: Path) -> None:
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


def filtered(name: str) -> predict_pb2.PredictRequest:
    message = request()
    message.output_filter.append(name)
    return message


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (predict_pb2.PredictRequest(), Code.INVALID_ARGUMENT, "model_spec: expected the name of a model, found none"),
        (request("other"), Code.NOT_FOUND, "model 'other' is not served here; served: m"),
        (change(request(), signature_name="train"), Code.FAILED_PRECONDITION, "signature 'train' does not exist"),
        (change(request(), version_label="stable"), Code.INVALID_ARGUMENT, "label 'stable'"),
        (filtered("logits"), Code.INVALID_ARGUMENT, "output filter: expected some of seen, total, found logits"),
        (request(y=1.0), Code.INVALID_ARGUMENT, "inputs: expected x, found y"),
        (request(x=np.ones([1, 2], np.float32), y=1.0), Code.INVALID_ARGUMENT, "inputs: expected x, found x, y"),
        (request(x=np.ones([1, 2])), Code.INVALID_ARGUMENT, "expected float32 [?, 2], found float64 [1, 2]"),
        (request(x=[["a", "b"]]), Code.INVALID_ARGUMENT, "expected float32 [?, 2], found string [1, 2]"),
        (
            request(x=np.ones([1, 3], np.float32)),
            Code.INVALID_ARGUMENT,
            "expected float32 [?, 2], found float32 [1, 3]",
        ),
        (request(x=np.ones([2], np.float32)), Code.INVALID_ARGUMENT, "expected float32 [?, 2], found float32 [2]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_request_gets_the_code_of_tensorflow_serving_and_both_sides(
    served: Running, message: predict_pb2.PredictRequest, code: grpc.StatusCode, text: str
) -> None:
    found, details = refused(served.prediction_service.Predict, message)
    assert found is code
    assert text in details
    assert "Traceback" not in details
    assert served.prediction_service.Predict(request(), timeout=LONG).model_spec.version.value == 7


def test_what_a_kernel_refuses_is_the_callers_fault_in_one_line(running: Running, publisher: Publisher) -> None:
    publisher.publish(7, kind=Lookup)
    synced(running)
    assert proven(seen(running.prediction_service.Predict(request(rows=[5]), timeout=LONG)), 7)
    code, text = refused(running.prediction_service.Predict, request(rows=[64]))
    assert code is Code.INVALID_ARGUMENT
    assert "64 is not in [0, 64)" in text
    assert "\n" not in text


@pytest.mark.parametrize("name", ["n" * 100_000, "\N{SNOWMAN}" * 100_000])
def test_of_a_name_without_end_the_answer_repeats_the_beginning(served: Running, name: str) -> None:
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


def test_an_empty_tensor_beyond_any_address_is_the_callers_fault(served: Running) -> None:
    message = request()
    message.inputs["x"].CopyFrom(tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT))
    for size in (0, 1 << 61):
        message.inputs["x"].tensor_shape.dim.add(size=size)
    code, text = refused(served.prediction_service.Predict, message)
    assert code is Code.INVALID_ARGUMENT
    assert "input 'x', shape: expected fewer elements" in text


def test_bytes_that_are_no_message_are_the_callers_fault(served: Running, caplog: pytest.LogCaptureFixture) -> None:
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


def test_messages_beyond_four_megabytes_are_normal_and_beyond_the_limit_refused(served: Running) -> None:
    rows = 1 << 20  # 8 MB in, 4 MB out
    answer = served.prediction_service.Predict(request(x=np.ones([rows, 2], np.float32)), timeout=LONG)
    assert len(answer.outputs["total"].float_val) == rows
    code, _ = refused(served.prediction_service.Predict, request(x=np.ones([9 * rows, 2], np.float32)))
    assert code is Code.RESOURCE_EXHAUSTED


def test_nan_in_an_input_is_the_callers_business(served: Running) -> None:
    answer = served.prediction_service.Predict(request(x=np.full([1, 2], np.nan, np.float32)), timeout=LONG)
    assert np.isnan(answer.outputs["total"].float_val[0])


def test_what_is_not_offered_is_unimplemented(served: Running) -> None:
    code, text = refused(served.prediction_service.Classify, classification_pb2.ClassificationRequest())
    assert (code, text) == (Code.UNIMPLEMENTED, "Classify is not offered; use Predict")
    reload = model_management_pb2.ReloadConfigRequest()
    assert refused(served.model_service.HandleReloadConfigRequest, reload)[0] is Code.UNIMPLEMENTED


def metadata(*fields: str, version: int | None = None) -> get_model_metadata_pb2.GetModelMetadataRequest:
    message = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    message.model_spec.name = "m"
    if version is not None:
        message.model_spec.version.value = version
    return message


def test_metadata_tells_inputs_and_outputs(served: Running) -> None:
    answer = served.prediction_service.GetModelMetadata(metadata("signature_def"), timeout=LONG)
    assert answer.model_spec.version.value == 7
    found = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(found)
    signature = found.signature_def["serving_default"]
    x = signature.inputs["x"]
    assert (x.dtype, [dim.size for dim in x.tensor_shape.dim]) == (types_pb2.DT_FLOAT, [-1, 2])
    assert set(signature.outputs) == {"seen", "total"}


@pytest.mark.parametrize("fields", [(), ("signatures",), ("signature_def", "more")])
def test_metadata_accepts_exactly_signature_def(served: Running, fields: tuple[str, ...]) -> None:
    code, text = refused(served.prediction_service.GetModelMetadata, metadata(*fields))
    assert code is Code.INVALID_ARGUMENT
    assert "signature_def" in text


def test_every_answer_is_of_one_version_while_versions_are_committed_all_the_time(
    served: Running, publisher: Publisher
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


# Model status ---------------------------------------------------------------------------------------------------------


def statuses(running: Running, version: int | None = None) -> list[tuple[int, int]]:
    message = get_model_status_pb2.GetModelStatusRequest()
    message.model_spec.name = "m"
    if version is not None:
        message.model_spec.version.value = version
    answer = running.model_service.GetModelStatus(message, timeout=LONG)
    return [(one.version, one.state) for one in answer.model_version_status]


def test_model_status_lists_resident_versions_and_failed_ones_with_their_error(
    served: Running, publisher: Publisher
) -> None:
    state = get_model_status_pb2.ModelVersionStatus
    publisher.publish(8)
    synced(served)
    publisher.publish_bad(9)
    refused(lambda message, timeout: list(served.sync.Sync(message, timeout=timeout)), pb.SyncRequest())
    assert statuses(served) == [(9, state.END), (8, state.AVAILABLE), (7, state.AVAILABLE)]
    assert statuses(served, version=8) == [(8, state.AVAILABLE)]
    message = get_model_status_pb2.GetModelStatusRequest()
    message.model_spec.name = "m"
    message.model_spec.version.value = 9
    found = served.model_service.GetModelStatus(message, timeout=LONG).model_version_status[0].status
    assert found.error_code == Code.FAILED_PRECONDITION.value[0]
    assert "finite values" in found.error_message


def test_model_status_of_what_is_not_there_is_not_found(served: Running) -> None:
    message = get_model_status_pb2.GetModelStatusRequest()
    message.model_spec.name = "other"
    assert refused(served.model_service.GetModelStatus, message)[0] is Code.NOT_FOUND
    message.model_spec.name = "m"
    message.model_spec.version.value = 99
    assert refused(served.model_service.GetModelStatus, message)[0] is Code.NOT_FOUND


# Sync -----------------------------------------------------------------------------------------------------------------


def test_sync_streams_its_progress_until_the_version_serves(running: Running, publisher: Publisher) -> None:
    publisher.publish(5)
    found = synced(running)
    phases = [(one.phase, one.version) for one in found]
    assert phases[0] == (pb.SyncProgress.LOOKING, 0)
    assert phases[-1] == (pb.SyncProgress.DONE, 5)
    assert set(phases[1:-1]) <= {(pb.SyncProgress.RESTORING, 5)}
    assert found[-1].status.serving.number == 5
    assert found[-1].status.state == pb.ModelStatus.SERVING


def test_sync_of_a_bad_version_says_why_not(served: Running, publisher: Publisher) -> None:
    publisher.publish_bad(8)
    code, text = refused(lambda message, timeout: list(served.sync.Sync(message, timeout=timeout)), pb.SyncRequest())
    assert code is Code.FAILED_PRECONDITION
    assert "version 8 of model 'm' is quarantined" in text
    assert seen(served.prediction_service.Predict(request(), timeout=LONG)) == [7.0] * PARAMETERS


def test_sync_says_just_before_the_deadline_what_it_waits_for(running: Running, tmp_path: Path) -> None:
    code, text = refused(
        lambda message, timeout: list(running.sync.Sync(message, timeout=timeout)), pb.SyncRequest(), 1
    )
    assert code is Code.DEADLINE_EXCEEDED
    assert f"nothing is published in {tmp_path / 'm'} yet" in text


def test_sync_to_an_unknown_version_or_model_is_not_found(served: Running, publisher: Publisher) -> None:
    def sync(message: pb.SyncRequest, timeout: float) -> list[pb.SyncProgress]:
        return list(served.sync.Sync(message, timeout=timeout))

    assert refused(sync, pb.SyncRequest(version=3))[0] is Code.NOT_FOUND
    assert refused(sync, pb.SyncRequest(model="other"))[0] is Code.NOT_FOUND


def test_a_sync_whose_caller_left_is_forgotten(running: Running) -> None:
    wishes = running.server.followers[0]._wishes
    call = running.sync.Sync(pb.SyncRequest(), timeout=LONG)
    eventually(wishes.fresh, lambda: "the sync to be asked for")
    call.cancel()
    eventually(lambda: not wishes.fresh(), lambda: "the sync to be forgotten")


def test_status_tells_all_there_is_to_know(served: Running, publisher: Publisher, tmp_path: Path) -> None:
    publisher.publish_bad(9)
    refused(lambda message, timeout: list(served.sync.Sync(message, timeout=timeout)), pb.SyncRequest())
    (status,) = served.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).models
    assert (status.model, status.store, status.state) == ("m", str(tmp_path / "m"), pb.ModelStatus.SERVING)
    assert (status.published.number, status.serving.number, list(status.resident)) == (9, 7, [7])
    assert [(one.number, "finite" in one.reason) for one in status.quarantined] == [(9, True)]
    assert status.lag_steps == 2
    assert status.lag_seconds > 0
    assert (status.HasField("pinned"), status.last_error, status.swaps) == (False, "", 1)


def test_pin_and_unpin(served: Running, publisher: Publisher) -> None:
    publisher.publish(8)
    synced(served)
    status = served.sync.Pin(pb.PinRequest(model="m", version=7), timeout=LONG)
    assert (status.pinned, status.serving.number) == (7, 7)
    code, text = refused(lambda message, timeout: list(served.sync.Sync(message, timeout=timeout)), pb.SyncRequest())
    assert code is Code.FAILED_PRECONDITION
    assert "pinned to version 7" in text
    assert proven(seen(served.prediction_service.Predict(request(), timeout=LONG)), 7)
    status = served.sync.Unpin(pb.UnpinRequest(), timeout=LONG)
    assert (status.HasField("pinned"), status.serving.number) == (False, 8)
    assert refused(served.sync.Pin, pb.PinRequest(model="m", version=3))[0] is Code.NOT_FOUND
    code, text = refused(served.sync.Pin, pb.PinRequest(model="m"))
    assert (code, text) == (Code.INVALID_ARGUMENT, "version: expected the number of a version, found none")


def test_watch_tells_every_event_until_the_server_drains(served: Running, publisher: Publisher) -> None:
    call = served.sync.Watch(pb.WatchRequest(), timeout=LONG)
    call.initial_metadata()  # from here on nothing is missed
    publisher.publish(8)
    synced(served)
    publisher.publish_bad(9)
    refused(lambda message, timeout: list(served.sync.Sync(message, timeout=timeout)), pb.SyncRequest())
    served.drain()
    events = list(call)
    found = [(event.kind, event.version.number) for event in events]
    assert list(dict.fromkeys(found)) == [  # the sync may have tried the bad one once more
        (pb.Event.FOUND, 8),
        (pb.Event.SWAPPED, 8),
        (pb.Event.FOUND, 9),
        (pb.Event.QUARANTINED, 9),
    ]
    assert "finite" in events[-1].reason


def test_a_watch_that_falls_behind_ends_with_that_after_the_last_event_before_the_gap(
    served: Running, publisher: Publisher
) -> None:
    call = served.sync.Watch(pb.WatchRequest(), timeout=LONG)
    call.initial_metadata()
    follower = served.server.followers[0]

    async def hold_up() -> None:
        for step in range(8, 8 + MOST_UNREAD // 3 + 1):
            publisher.publish(step)
            follower.sync(timeout=LONG)

    served.call(hold_up)  # the loop, and with it all that is sent, while that happens
    numbers: list[int] = []
    with pytest.raises(grpc.RpcError, match="events unread") as raised:
        numbers.extend(event.version.number for event in call)
    assert raised.value.code() is Code.RESOURCE_EXHAUSTED
    assert len(numbers) > MOST_UNREAD // 2
    assert sorted(set(numbers)) == list(range(8, 8 + len(set(numbers))))
    assert served.health("m") == SERVING


# Health, reflection, ports --------------------------------------------------------------------------------------------

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_health_follows_what_serves(tmp_path: Path) -> None:
    running = Running(tmp_path / "a", tmp_path / "b")
    publishers = [Publisher(tmp_path / name) for name in "ab"]
    watched = health_pb2_grpc.HealthStub(running.control).Watch(health_pb2.HealthCheckRequest(), timeout=LONG)
    others = health_pb2_grpc.HealthStub(running.predictions)
    leaving = others.Watch(health_pb2.HealthCheckRequest(service=""), timeout=LONG)
    assert next(watched).status == next(leaving).status == NOT_SERVING
    leaving.cancel()  # one watcher's end is not another's
    publishers[0].publish(1)
    list(running.sync.Sync(pb.SyncRequest(model="a"), timeout=LONG))
    of_b = others.Watch(health_pb2.HealthCheckRequest(service="b"), timeout=LONG)
    assert next(of_b).status == NOT_SERVING
    publishers[1].publish(1)
    assert next(of_b).status == SERVING
    assert next(watched).status == SERVING
    assert [running.health(name) for name in ("", "a", "b", "tensorflow.serving.PredictionService")] == [SERVING] * 4
    assert running.health("a", control=True) == SERVING
    assert refused(others.Check, health_pb2.HealthCheckRequest(service="c"))[0] is Code.NOT_FOUND
    running.drain()
    assert next(watched).status == NOT_SERVING
    assert list(watched) == []
    running.close()
    for one in publishers:
        one.close()


def test_health_is_not_serving_before_a_version_serves(running: Running) -> None:
    assert [running.health(name) for name in ("", "m")] == [NOT_SERVING, NOT_SERVING]


def test_reflection_names_the_services_of_each_port(running: Running) -> None:
    predictions = set(ProtoReflectionDescriptorDatabase(running.predictions).get_services())
    control = set(ProtoReflectionDescriptorDatabase(running.control).get_services())
    assert {"tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"} <= predictions
    assert "paramsync.v1.Sync" in control
    assert "paramsync.v1.Sync" not in predictions
    assert {"grpc.health.v1.Health"} <= predictions & control


def test_a_port_that_another_server_has_is_noticed(running: Running, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"port {running.port} of 127.0.0.1 is taken; choose another with --port"):
        Running(tmp_path / "n", port=running.port)


def test_an_error_nobody_foresaw_shows_the_client_nothing() -> None:
    assert status_of(ZeroDivisionError("secret")) == (Code.INTERNAL, "internal error; the server's log has it")


def test_an_error_that_is_no_text_can_be_told_all_the_same() -> None:
    assert status_of(SyncError("no \udcff here")) == (Code.FAILED_PRECONDITION, "no \\udcff here")


# Many at once ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repetition", range(3))
def test_what_was_taken_up_before_the_end_is_answered_to_the_last_byte(
    running: Running, publisher: Publisher, tmp_path: Path, repetition: int
) -> None:
    publisher.publish(7, kind=Gated)
    synced(running)
    gate = tmp_path / "gate"
    x = np.ones([1 << 19, 2], np.float32)  # 4 MB there, and back
    message = request(x=x, called=str(tmp_path / "called"), gate=str(gate))
    channels = [grpc.insecure_channel(f"127.0.0.1:{running.port}", _OPTIONS) for _ in range(12)]
    stubs = [prediction_service_pb2_grpc.PredictionServiceStub(one) for one in channels]
    answers = [one.Predict.future(message, timeout=LONG) for one in stubs]
    eventually(lambda: running.server._threads.taken == len(answers), lambda: "all to be taken up")
    draining = threading.Thread(target=running.drain)
    draining.start()
    eventually(lambda: running.health(control=True) == NOT_SERVING, lambda: "the drain")
    gate.touch()
    assert all(len(one.result().outputs["same"].float_val) == x.size for one in answers)
    draining.join(LONG)
    for one in channels:
        one.close()


def test_a_stream_that_its_caller_never_ends_does_not_hold_up_the_end(running: Running) -> None:
    over = threading.Event()

    def ask() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        over.wait(LONG)

    stub = reflection_pb2_grpc.ServerReflectionStub(running.predictions)
    answers = stub.ServerReflectionInfo(ask(), timeout=LONG)
    assert next(answers).list_services_response.service
    running.drain()  # fails where it takes longer than the grace
    assert list(answers) == []
    over.set()


def test_more_requests_than_may_wait_are_refused_and_those_whose_callers_left_are_not_computed() -> None:
    gate = threading.Event()
    computed: list[str] = []

    def work(name: str) -> str:
        assert gate.wait(LONG)
        computed.append(name)
        return name

    async def ask() -> None:
        threads = Threads(1, most=3)
        first, second, third = (asyncio.ensure_future(threads.run(partial(work, name))) for name in "abc")
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        with pytest.raises(BusyError, match="3 requests are waiting or being answered already"):
            await threads.run(partial(work, "d"))
        gate.set()
        assert (await first, await third) == ("a", "c")
        assert await threads.run(partial(work, "e")) == "e"
        await asyncio.sleep(0)
        assert threads.taken == 0
        threads.close()

    asyncio.run(ask())
    assert computed == ["a", "c", "e"]
    assert status_of(BusyError("x"))[0] is Code.RESOURCE_EXHAUSTED


# Tensors --------------------------------------------------------------------------------------------------------------

NUMBERS = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool", "complex64", "complex128", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (3, 0, 2)])
def test_every_dtype_is_written_as_tensorflow_and_our_client_read_it(dtype: str, shape: tuple[int, ...]) -> None:
    kind = tf.dtypes.as_dtype(dtype)
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind.as_numpy_dtype)
    proto = encode(tf.constant(values))
    for found in (tf.make_ndarray(proto), wire.to_arrays({"x": proto}, "output")["x"]):
        assert (found.dtype, found.shape, found.tolist()) == (values.dtype, shape, values.tolist())


def test_strings_are_written() -> None:
    values = np.array([["a", "\N{SNOWMAN}"], ["", "d"]])
    assert tf.make_ndarray(encode(tf.constant(values))).tolist() == np.char.encode(values, "utf8").tolist()
    assert encode(tf.constant("alone")).string_val[0] == b"alone"


def test_inputs_are_judged_before_memory_is_spent_on_them(served: Running) -> None:
    message = request()
    for at in range(20):
        one = message.inputs[f"more {at}"]
        one.CopyFrom(tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[1.5]))
        one.tensor_shape.dim.add(size=wire.MAX_BYTES // 4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refused(served.prediction_service.Predict, message)[0] is Code.INVALID_ARGUMENT
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < wire.MAX_BYTES >> 10
