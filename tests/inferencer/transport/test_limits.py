"""What a stranger's message may cost: it is refused before time or memory is spent on it, and others are answered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
from tests.support.in_process import InProcess
from tests.support.programs import eventually
from tests.support.running import LONG, Running, request

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
