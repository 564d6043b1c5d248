"""What a stranger's message may cost, and more calls at once than are answered: refused before memory is spent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import get_model_metadata_pb2, inference_pb2, model_pb2, predict_pb2
from tensorflow_serving.config import model_server_config_pb2

from inferencer.protocols.tfs import reload
from inferencer.transport.unfolding import unfolded
from paramsync.errors import InputError
from paramsync.kserve import open_inference_pb2 as kserve_pb2
from paramsync.rpc.tensor_proto import VALUE_FIELDS, packed
from tests.support.echoes import Echoes
from tests.support.http import call
from tests.support.in_process import InProcess
from tests.support.programs import eventually
from tests.support.published import Gated, Publisher, proven
from tests.support.running import LONG, SERVING, Running, request, seen

MB = 1 << 20
Code = grpc.StatusCode
TFS, KSERVE = "tensorflow.serving.PredictionService", "inference.GRPCInferenceService"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """A server of model `m`, which gives back what it is given, and takes messages up to 1 MB."""
    folder = tmp_path_factory.mktemp("small")
    echoes, running = Echoes(folder / "m"), InProcess(folder / "m", message_bytes=MB)
    running.restore(echoes.publish(4))
    yield running
    running.close()
    echoes.close()


def refused(running: Running, path: str, content: Message) -> tuple[grpc.StatusCode, str]:
    call = running.predictions.unary_unary(f"/{path}", bytes, bytes)
    with pytest.raises(grpc.RpcError) as raised:
        call(content.SerializeToString(), timeout=LONG)
    return raised.value.code(), raised.value.details() or ""


def shaped(x: np.ndarray[Any, Any]) -> predict_pb2.PredictRequest:
    message = request(x=x)
    message.model_spec.signature_name = "shaped"
    return message


def test_what_does_not_predict_is_read_up_to_a_quarter_of_a_megabyte(small: InProcess) -> None:
    message = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=[""] * 200_000)
    code, text = refused(small, f"{TFS}/GetModelMetadata", message)
    assert (code, "expected at most 262144 bytes, found 400000" in text) == (Code.RESOURCE_EXHAUSTED, True)


def test_a_configuration_may_not_name_models_without_end() -> None:
    config = model_server_config_pb2.ModelServerConfig()
    for number in range(300):
        config.model_config_list.config.add(name=f"m{number}", base_path="/")
    with pytest.raises(InputError, match="at most 256 models, found 300"):
        reload.read(config, [], {}, None)


def many_filters() -> Any:
    return predict_pb2.PredictRequest(model_spec=model_pb2.ModelSpec(name="m"), output_filter=["a"] * 5000)


def many_inputs() -> Any:
    message = predict_pb2.PredictRequest(model_spec=model_pb2.ModelSpec(name="m"))
    for number in range(5000):
        message.inputs[str(number)].SetInParent()
    return message


def many_tasks() -> Any:
    return inference_pb2.MultiInferenceRequest(tasks=[inference_pb2.InferenceTask()] * 5000)


def many_outputs() -> Any:
    outputs = [kserve_pb2.ModelInferRequest.InferRequestedOutputTensor()] * 5000
    return kserve_pb2.ModelInferRequest(model_name="m", outputs=outputs)


@pytest.mark.parametrize(
    ("path", "made"),
    [
        (f"{TFS}/Predict", many_filters),
        (f"{TFS}/Predict", many_inputs),
        (f"{TFS}/MultiInference", many_tasks),
        (f"{KSERVE}/ModelInfer", many_outputs),
    ],
)
def test_more_names_than_any_model_has_are_counted_and_not_looked_at(
    small: InProcess, path: str, made: Callable[[], Any]
) -> None:
    code, text = refused(small, path, made())
    assert (code, "expected at most 4096 of them, found 5000" in text) == (Code.INVALID_ARGUMENT, True)


def test_streams_that_callers_leave_open_take_no_room_from_predictions(small: InProcess) -> None:
    watch = health_pb2_grpc.HealthStub(small.predictions).Watch
    streams = [watch(health_pb2.HealthCheckRequest(service="m")) for _ in range(512)]
    for one in streams:
        next(one)
    with pytest.raises(grpc.RpcError) as raised:
        next(watch(health_pb2.HealthCheckRequest()))
    assert raised.value.code() is Code.RESOURCE_EXHAUSTED
    assert shape_of(small, 1) == [1]
    for one in streams:
        one.cancel()


def test_an_answer_beyond_the_limit_is_refused_with_its_size(
    small: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    code, text = refused(small, f"{TFS}/Predict", shaped(np.ones(200_000, np.float32)))
    assert code is Code.RESOURCE_EXHAUSTED
    assert "answer: expected at most 1048576 bytes, found 2400" in text
    assert not caplog.records
    assert shape_of(small, 2) == [2]


def shape_of(running: Running, count: int) -> list[int]:
    answer = running.prediction_service.Predict(shaped(np.ones(count, np.float32)), timeout=LONG)
    return [one.size for one in answer.outputs["x"].tensor_shape.dim]


def test_what_small_messages_unfold_to_has_to_find_room(small: InProcess) -> None:
    message = shaped(np.ones(1, np.float32))
    message.inputs["x"].tensor_shape.dim[0].size = 3 * MB // 4  # 3 MB, of one value, and as much for TensorFlow
    message.output_filter.append("version")
    other = small.server.budget.share()
    small.call(as_coroutine(lambda: other.need(8 * MB)))
    code, text = refused(small, f"{TFS}/Predict", message)
    assert code is Code.RESOURCE_EXHAUSTED
    assert re.search(r"requests and unread answers take 8[34]\d{5} bytes: expected 12582912", text), text
    small.call(as_coroutine(other.leave))
    small.prediction_service.Predict(message, timeout=LONG)
    eventually(
        lambda: small.server.budget.taken == 0,
        lambda: f"{small.server.budget.taken} bytes to be left",
    )


def test_what_no_room_could_hold_is_refused_for_good(small: InProcess) -> None:
    message = shaped(np.ones(1, np.float32))
    message.inputs["x"].tensor_shape.dim[0].size = 15 * MB
    code, text = refused(small, f"{TFS}/Predict", message)
    assert (code, "request, with all that is made of it: expected at most 12582912 bytes" in text) == (
        Code.RESOURCE_EXHAUSTED,
        True,
    )


def as_coroutine(work: Callable[[], Any]) -> Callable[[], Any]:
    async def call() -> Any:
        return work()

    return call


TINY = {
    "examples": (f"{TFS}/Classify", packed(2, packed(1, b"\x0a\x00" * 400_000))),
    "entries of a map": (f"{TFS}/Predict", b"\x12\x00" * 400_000),
    "numbers": (f"{TFS}/Predict", packed(2, packed(1, b"x") + packed(2, packed(10, b"\x01" * 900_000)))),
    "dimensions": (f"{TFS}/Predict", packed(2, packed(1, b"x") + packed(2, packed(2, b"\x12\x00" * 400_000)))),
}


@pytest.mark.parametrize("kind", TINY)
def test_a_message_of_tiny_fields_counts_as_what_it_becomes(small: InProcess, kind: str) -> None:
    path, content = TINY[kind]
    with pytest.raises(grpc.RpcError) as raised:
        small.predictions.unary_unary(f"/{path}", bytes, bytes)(content, timeout=LONG)
    assert raised.value.code() is Code.RESOURCE_EXHAUSTED, raised.value.details()
    assert "with all that is made of it" in (raised.value.details() or "")


@pytest.mark.parametrize("kind", [float, np.float32, np.int64, np.int32, np.uint8, bytes, bool])
def test_a_message_becomes_no_more_than_is_counted(kind: Any) -> None:
    for count in (10, 5000, 100_000):
        array = np.ones(count).astype(kind) if kind is not bytes else np.array([b"word"] * count, object)
        for message in (request(x=array), valued(array)):
            content = message.SerializeToString()
            found = unfolded(type(message).DESCRIPTOR, content)
            least = array.nbytes if kind is not bytes else 4 * count
            assert least <= found <= 30 * len(content) + 4096, (found, len(content))


def valued(array: Any) -> predict_pb2.PredictRequest:
    """Each value by itself, not as bytes."""
    message = predict_pb2.PredictRequest()
    proto = message.inputs["x"]
    proto.CopyFrom(tf.make_tensor_proto(array, shape=[len(array)]) if array.dtype.kind == "O" else as_values(array))
    return message


def as_values(array: Any) -> Any:
    field = VALUE_FIELDS[str(array.dtype)]
    proto = tf.make_tensor_proto(array[:1])
    proto.ClearField(field)
    proto.ClearField("tensor_content")
    getattr(proto, field).extend(array.tolist())
    return proto


def test_beyond_the_queue_both_protocols_refuse_at_once_and_others_are_answered(tmp_path: Path, gate: Path) -> None:
    running, publisher = InProcess(tmp_path / "m", queue=8), Publisher(tmp_path / "m")
    running.restore(publisher.publish(5, kind=Gated))
    called = tmp_path / "called"
    endless = request(called=str(called), gate=str(gate), x=np.ones([1, 2], np.float32))
    waiting = [running.prediction_service.Predict.future(endless, timeout=LONG) for _ in range(8)]
    eventually(lambda: running.server.batcher.held == 8, lambda: "the queue to be full")
    for _ in range(20):
        with pytest.raises(grpc.RpcError, match="8 requests are waiting or being answered already") as raised:
            running.prediction_service.Predict(endless, timeout=LONG)
        assert raised.value.code() is Code.RESOURCE_EXHAUSTED
        inputs = {"x": [[1.0, 1.0]], "called": str(called), "gate": str(gate)}
        got = call(running.rest_port, "POST", "/v1/models/m:predict", {"inputs": inputs})
        assert (got.status, "8 requests are waiting" in got.error) == (429, True)
    assert call(running.rest_port, "GET", "/v1/models/m").status == 200
    gate.touch()
    assert all(seen(one.result()) == [5.0] * 6 for one in waiting)
    assert seen(running.prediction_service.Predict(endless, timeout=LONG)) == [5.0] * 6
    running.close()
    publisher.close()


@pytest.mark.parametrize("rows", [1, 1000], ids=["small", "large"])
def test_while_one_model_computes_for_ever_another_answers(tmp_path: Path, gate: Path, rows: int) -> None:
    stores = [tmp_path / "slow", tmp_path / "m"]
    publishers = [Publisher(one) for one in stores]
    running = InProcess(*stores)
    running.restore(publishers[0].publish(5, kind=Gated), "slow")
    running.restore(publishers[1].publish(7))
    called = tmp_path / "called"
    endless = request("slow", x=np.ones([rows, 2], np.float32), called=str(called), gate=str(gate))
    waiting = [running.prediction_service.Predict.future(endless, timeout=LONG)]
    eventually(called.exists, lambda: "the first call")  # calls that wait for a connection come in any order
    waiting += [running.prediction_service.Predict.future(endless, timeout=LONG) for _ in range(29)]
    eventually(lambda: running.server.batcher.held == 30, lambda: "all to be there")
    for _ in range(30):
        answer = running.prediction_service.Predict(request("m"), timeout=LONG)
        assert proven(seen(answer), 7)
    assert running.health("m") == SERVING
    waiting[29].cancel()
    eventually(lambda: running.server.batcher.held == 29, lambda: "the one that left")
    gate.touch()
    assert all(proven(seen(one.result()), 5) for one in waiting[:29])
    running.close()
    for publisher in publishers:
        publisher.close()
