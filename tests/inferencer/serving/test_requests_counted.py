"""Requests that are refused are counted under the model that they asked, whatever protocol they came by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeAlias

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from tensorflow_serving.apis import classification_pb2, inference_pb2, predict_pb2, regression_pb2

from inferencer.transport.memory_budget import MemoryBudget
from paramsync.kserve import open_inference_pb2 as kserve_pb2
from tests.support.http import call
from tests.support.in_process import InProcess
from tests.support.programs import eventually
from tests.support.published import Publisher
from tests.support.running import LONG, request

TFS, KSERVE = "tensorflow.serving.PredictionService", "inference.GRPCInferenceService"
Code = grpc.StatusCode
Check: TypeAlias = "Callable[[str, str, str], None]"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    folder = tmp_path_factory.mktemp("counted")
    with closing(Publisher(folder / "m")) as publisher, closing(InProcess(folder / "m")) as running:
        running.restore(publisher.publish(7))
        yield running


@pytest.fixture
def check_counted(served: InProcess) -> Check:
    """Fails unless the test has asked once, with this model, protocol and code."""

    def counts() -> Counter[tuple[str, str, str]]:
        found: Counter[tuple[str, str, str]] = Counter()
        for (model, _, _, protocol, code), one in served.server.metrics.requests.items():
            found[model, protocol, code] += one.count
        return found

    before = counts()

    def check(*expected: str) -> None:
        eventually(lambda: counts() != before, lambda: "a request to be counted")
        assert counts() - before == {expected: 1}

    return check


def refused(running: InProcess, path: str, content: bytes) -> grpc.StatusCode:
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
def test_a_refused_call(
    served: InProcess,
    check_counted: Check,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    protocol: str,
    message: Message,
    full: bool,
) -> None:
    if full:
        monkeypatch.setattr(served.server.batcher, "_most", 0)
    code = refused(served, path, message.SerializeToString())
    assert (code is Code.RESOURCE_EXHAUSTED) is full
    check_counted("m", protocol, code.name)


@pytest.mark.parametrize("last", [False, True], ids=["named first", "named last"])
def test_a_large_message_that_finds_no_room(
    served: InProcess, check_counted: Check, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    large, named = request("m", x=np.ones([1 << 16, 2], np.float32)), asked(predict_pb2.PredictRequest)
    large.ClearField("model_spec")
    parts = [named.SerializeToString(), large.SerializeToString()]
    full = MemoryBudget(0)
    full.taken = 1
    monkeypatch.setattr(served.server.answering, "_budget", full)
    assert refused(served, f"{TFS}/Predict", b"".join(parts[::-1] if last else parts)) is Code.RESOURCE_EXHAUSTED
    check_counted("m", "tfs", "RESOURCE_EXHAUSTED")


def test_one_of_a_stream(served: InProcess, check_counted: Check) -> None:
    stream = served.predictions.stream_stream(f"/{KSERVE}/ModelStreamInfer", bytes, bytes)
    assert len([*stream(iter([INFER.SerializeToString()]), timeout=LONG)]) == 1
    check_counted("m", "kserve", "INVALID_ARGUMENT")


def test_by_http(served: InProcess, check_counted: Check) -> None:
    assert call(served.rest_port, "POST", "/v1/models/m:predict", {"instances": "none"}).status == 400
    check_counted("m", "rest", "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"\xff" * 10, Code.INVALID_ARGUMENT), (request("made up").SerializeToString(), Code.NOT_FOUND)],
    ids=["no message", "no model of this server"],
)
def test_what_names_no_served_model_has_an_empty_label(
    served: InProcess, check_counted: Check, content: bytes, code: grpc.StatusCode
) -> None:
    assert refused(served, f"{TFS}/Predict", content) is code
    check_counted("", "tfs", code.name)
