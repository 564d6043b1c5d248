"""Requests that are refused are counted under the model that they asked, whatever protocol they came by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from tensorflow_serving.apis import classification_pb2, inference_pb2, predict_pb2, regression_pb2

from inferencer.transport.memory_budget import MemoryBudget
from paramsync.kserve import open_inference_pb2 as kserve_pb2
from tests.support.http import call
from tests.support.programs import eventually
from tests.support.running import LONG, LocalRunning, request

TFS, KSERVE = "tensorflow.serving.PredictionService", "inference.GRPCInferenceService"
Code = grpc.StatusCode
_LARGE = np.ones([1 << 16, 2], np.float32)


def counted(running: LocalRunning) -> Counter[tuple[str, str, str]]:
    """Requests by model, protocol and code."""
    found: Counter[tuple[str, str, str]] = Counter()
    for (model, _, _, protocol, code), one in running.server.predicting.metrics.requests.items():
        found[model, protocol, code] += one.count
    return found


def check_counted(running: LocalRunning, *expected: str) -> None:
    eventually(lambda: counted(running).total() > 0, lambda: "one to be counted")
    assert counted(running) == {expected: 1}


def refused(running: LocalRunning, path: str, content: bytes) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        running.predictions.unary_unary(f"/{path}", bytes, bytes)(content, timeout=LONG)
    return raised.value.code()


def predict(**inputs: Any) -> predict_pb2.PredictRequest:
    return request("m", **inputs)


def classify() -> Any:
    found = classification_pb2.ClassificationRequest()
    found.model_spec.name = "m"
    return found


def regress() -> Any:
    found = regression_pb2.RegressionRequest()
    found.model_spec.name = "m"
    return found


def inference() -> Any:
    found = inference_pb2.MultiInferenceRequest()
    found.tasks.add(method_name="tensorflow/serving/classify").model_spec.name = "m"
    return found


def infer() -> Message:
    return kserve_pb2.ModelInferRequest(model_name="m")


ASKED = [
    (f"{TFS}/Predict", "tfs", lambda: predict(unknown=np.ones(1))),
    (f"{TFS}/Classify", "tfs", classify),
    (f"{TFS}/Regress", "tfs", regress),
    (f"{TFS}/MultiInference", "tfs", inference),
    (f"{KSERVE}/ModelInfer", "kserve", infer),
]


@pytest.mark.parametrize(("path", "protocol", "made"), ASKED)
def test_what_a_version_cannot_answer(
    served: LocalRunning, path: str, protocol: str, made: Callable[[], Message]
) -> None:
    code = refused(served, path, made().SerializeToString())
    assert code is not Code.OK
    check_counted(served, "m", protocol, code.name)


@pytest.mark.parametrize(("path", "protocol", "made"), ASKED)
def test_what_is_refused_before_it_is_read(
    served: LocalRunning, path: str, protocol: str, made: Callable[[], Message]
) -> None:
    served.server.predicting.batcher._most = 0
    assert refused(served, path, made().SerializeToString()) is Code.RESOURCE_EXHAUSTED
    check_counted(served, "m", protocol, "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize("last", [False, True], ids=["named first", "named last"])
def test_a_large_message_that_finds_no_room(served: LocalRunning, last: bool) -> None:
    large, named = predict(x=_LARGE), predict_pb2.PredictRequest()
    named.model_spec.name = "m"
    large.ClearField("model_spec")
    parts = [named.SerializeToString(), large.SerializeToString()]
    served.server.predicting.answering._budget = _full()
    assert refused(served, f"{TFS}/Predict", b"".join(parts[::-1] if last else parts)) is Code.RESOURCE_EXHAUSTED
    check_counted(served, "m", "tfs", "RESOURCE_EXHAUSTED")


def _full() -> MemoryBudget:
    room = MemoryBudget(0)
    room.taken = 1
    return room


def test_one_of_a_stream(served: LocalRunning) -> None:
    stream = served.predictions.stream_stream(f"/{KSERVE}/ModelStreamInfer", bytes, bytes)
    assert len([*stream(iter([infer().SerializeToString()]), timeout=LONG)]) == 1
    check_counted(served, "m", "kserve", "INVALID_ARGUMENT")


def test_by_http(served: LocalRunning) -> None:
    assert call(served.rest_port, "POST", "/v1/models/m:predict", {"instances": "none"}).status == 400
    check_counted(served, "m", "rest", "INVALID_ARGUMENT")


def test_what_is_no_message_asks_no_model(served: LocalRunning) -> None:
    assert refused(served, f"{TFS}/Predict", b"\xff" * 10) is Code.INVALID_ARGUMENT
    check_counted(served, "", "tfs", "INVALID_ARGUMENT")


def test_a_model_that_is_not_served_is_no_label(served: LocalRunning) -> None:
    assert refused(served, f"{TFS}/Predict", request("made up").SerializeToString()) is Code.NOT_FOUND
    check_counted(served, "", "tfs", "NOT_FOUND")
