"""What a stranger's message may cost: it is refused before time or memory is spent on it, and others are answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import get_model_metadata_pb2, inference_pb2, model_management_pb2, model_pb2, predict_pb2

from paramsync.kserve import open_inference_pb2 as kserve_pb2
from tests.echoes import Echoes
from tests.running import LONG, Running, request, synced

MB = 1 << 20
Code = grpc.StatusCode
TFS, KSERVE = "tensorflow.serving.PredictionService", "inference.GRPCInferenceService"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of model `m`, which gives back what it is given, and takes messages up to 1 MB."""
    folder = tmp_path_factory.mktemp("small")
    echoes, running = Echoes(folder / "m"), Running(folder / "m", message_bytes=MB)
    echoes.publish(4)
    synced(running)
    yield running
    running.drain()
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


def test_what_does_not_predict_is_read_up_to_a_quarter_of_a_megabyte(small: Running) -> None:
    message = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=[""] * 200_000)
    code, text = refused(small, f"{TFS}/GetModelMetadata", message)
    assert (code, "expected at most 262144 bytes, found 400000" in text) == (Code.RESOURCE_EXHAUSTED, True)


def test_a_configuration_may_not_name_models_without_end(small: Running) -> None:
    message = model_management_pb2.ReloadConfigRequest()
    for number in range(300):
        message.config.model_config_list.config.add(name=f"m{number}", base_path="/")
    code, text = refused(small, "tensorflow.serving.ModelService/HandleReloadConfigRequest", message)
    assert (code, "at most 256 models, found 300" in text) == (Code.INVALID_ARGUMENT, True)
    assert [one.name for one in small.server.models] == ["m"]


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
    small: Running, path: str, made: Callable[[], Any]
) -> None:
    code, text = refused(small, path, made())
    assert (code, "expected at most 4096 of them, found 5000" in text) == (Code.INVALID_ARGUMENT, True)


def test_streams_that_callers_leave_open_take_no_room_from_predictions(small: Running) -> None:
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


def test_an_answer_beyond_the_limit_is_refused_with_its_size(small: Running, caplog: pytest.LogCaptureFixture) -> None:
    code, text = refused(small, f"{TFS}/Predict", shaped(np.ones(200_000, np.float32)))
    assert code is Code.RESOURCE_EXHAUSTED
    assert "answer: expected at most 1048576 bytes, found 2400" in text
    assert not caplog.records
    assert shape_of(small, 2) == [2]


def shape_of(running: Running, count: int) -> list[int]:
    answer = running.prediction_service.Predict(shaped(np.ones(count, np.float32)), timeout=LONG)
    return [one.size for one in answer.outputs["x"].tensor_shape.dim]


def test_what_small_messages_unfold_to_has_to_find_room(small: Running) -> None:
    message = shaped(np.ones(1, np.float32))
    message.inputs["x"].tensor_shape.dim[0].size = 15 * MB  # 60 MB, of one value
    message.output_filter.append("version")
    asked = small.prediction_service.Predict
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(asked, message, timeout=LONG) for _ in range(8)]
        errors = [call.exception() for call in calls]
    codes = [one.code() for one in errors if isinstance(one, grpc.RpcError)]
    assert None in errors
    assert set(codes) == {Code.RESOURCE_EXHAUSTED}
    assert shape_of(small, 3) == [3]
