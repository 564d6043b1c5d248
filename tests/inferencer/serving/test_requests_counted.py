"""Requests that are refused are counted under the model that they asked, whatever protocol they came by."""

from __future__ import annotations

from collections import Counter
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


def asked(kind: Any) -> Any:
    """A request for model `m`, of no input."""
    message = kind()
    message.model_spec.name = "m"
    return message


MULTI = inference_pb2.MultiInferenceRequest()
MULTI.tasks.add(method_name="tensorflow/serving/classify").model_spec.name = "m"
INFER = kserve_pb2.ModelInferRequest(model_name="m")
ASKED = [
    (f"{TFS}/Predict", "tfs", request("m", unknown=np.ones(1))),
    (f"{TFS}/Classify", "tfs", asked(classification_pb2.ClassificationRequest)),
    (f"{TFS}/Regress", "tfs", asked(regression_pb2.RegressionRequest)),
    (f"{TFS}/MultiInference", "tfs", MULTI),
    (f"{KSERVE}/ModelInfer", "kserve", INFER),
]


@pytest.mark.parametrize("full", [False, True], ids=["by a version", "before it is read"])
@pytest.mark.parametrize(("path", "protocol", "message"), ASKED)
def test_a_refused_call(served: LocalRunning, path: str, protocol: str, message: Message, full: bool) -> None:
    if full:
        served.server.predicting.batcher._most = 0
    code = refused(served, path, message.SerializeToString())
    assert (code is Code.RESOURCE_EXHAUSTED) is full
    check_counted(served, "m", protocol, code.name)


@pytest.mark.parametrize("last", [False, True], ids=["named first", "named last"])
def test_a_large_message_that_finds_no_room(served: LocalRunning, last: bool) -> None:
    large, named = request("m", x=_LARGE), asked(predict_pb2.PredictRequest)
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
    assert len([*stream(iter([INFER.SerializeToString()]), timeout=LONG)]) == 1
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
