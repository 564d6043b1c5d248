"""Requests that were changed at random: each is answered or refused with a status, and the next good one is answered.

A few thousand with all other tests, 50,000 with `make campaign`.
"""

from __future__ import annotations

import collections
import http.client
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import Message
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)

from paramsync.kserve import open_inference_pb2 as kserve
from tests.hostile.fuzz.requests import mutated, mutated_json
from tests.support.inferencers import LONG, Process
from tests.support.values import VALUES

pytestmark = pytest.mark.slow

MB = 1 << 20
SERVING, KSERVE = "/tensorflow.serving.", "/inference.GRPCInferenceService/"
X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
REFUSED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def predict(signature: str, **inputs: Any) -> Any:
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "m", signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request


def infer() -> Any:
    request = kserve.ModelInferRequest(model_name="m", id="1")
    request.parameters["signature"].string_param = "negated"
    one = request.inputs.add(name="x", datatype="FP32", shape=[2, 2])
    one.contents.fp32_contents.extend(X.ravel().tolist())
    return request


def raw_infer() -> Any:
    request = infer()
    request.inputs[0].ClearField("contents")
    request.raw_input_contents.append(X.tobytes())
    return request


def of_examples(kind: type[Message]) -> Any:
    request: Any = kind()
    request.model_spec.name = "m"
    request.input.example_list.examples.add().features.feature["x"].float_list.value.extend([1.0, 2.0])
    return request


def several() -> Any:
    request = inference_pb2.MultiInferenceRequest()
    request.tasks.add(method_name="tensorflow/serving/classify").model_spec.name = "m"
    request.input.example_list.examples.add().features.feature["x"].float_list.value.append(1.0)
    return request


def about(kind: type[Message]) -> Any:
    request: Any = kind()
    request.model_spec.name = "m"
    return request


CALLS = [
    (SERVING + "PredictionService/Predict", predict("negated", x=X)),
    (SERVING + "PredictionService/Predict", predict("shaped", x=np.ones([2, 3, 1], np.float32))),
    (SERVING + "PredictionService/Predict", predict("serving_default", **{k.lower(): v for k, v in VALUES.items()})),
    (SERVING + "PredictionService/Classify", of_examples(classification_pb2.ClassificationRequest)),
    (SERVING + "PredictionService/Regress", of_examples(regression_pb2.RegressionRequest)),
    (SERVING + "PredictionService/MultiInference", several()),
    (SERVING + "PredictionService/GetModelMetadata", about(get_model_metadata_pb2.GetModelMetadataRequest)),
    (SERVING + "ModelService/GetModelStatus", about(get_model_status_pb2.GetModelStatusRequest)),
    (KSERVE + "ModelInfer", infer()),
    (KSERVE + "ModelInfer", raw_infer()),
    (KSERVE + "ModelMetadata", kserve.ModelMetadataRequest(name="m")),
    (KSERVE + "ModelReady", kserve.ModelReadyRequest(name="m")),
    (KSERVE + "ModelStatistics", kserve.ModelStatisticsRequest(name="m")),
    (KSERVE + "RepositoryIndex", kserve.RepositoryIndexRequest()),
]
BODIES = [
    {"signature_name": "negated", "instances": [[1.0, 2.0], [3.0, 4.0]]},
    {"signature_name": "negated", "inputs": {"x": [[1.0, 2.0]]}},
    {"signature_name": "shaped", "instances": [{"x": 1.0}, {"x": 2.0}]},
]
PATHS = ["predict", "predict", "classify", "regress"]
TENSOR = {"name": "x", "datatype": "FP32", "shape": [2, 2]}
NEGATED = {"signature": "negated"}
OF_KSERVE = [  # and the bytes behind them
    ({"parameters": NEGATED, "inputs": [{**TENSOR, "data": [1.0, 2.0, 3.0, 4.0]}], "outputs": [{"name": "y"}]}, b""),
    ({"parameters": NEGATED, "inputs": [{**TENSOR, "data": [[1, 2], [3, 4]]}], "id": "1"}, b""),
    ({"parameters": {**NEGATED, "binary_data_output": True}, "inputs": [
        {**TENSOR, "parameters": {"binary_data_size": 16}}
    ]}, X.tobytes()),
]  # fmt: skip


def is_answered(echoing: Process) -> bool:
    """Raises nothing while nothing serves yet."""
    try:
        answer = echoing.predict(predict("negated", x=X), timeout=LONG)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return False
        raise
    assert list(answer.outputs["y"].float_val) == [-1.0, -2.0, -3.0, -4.0]
    assert answer.model_spec.version.value == 4
    return True


def memory(echoing: Process) -> int:
    """In bytes."""
    lines = Path(f"/proc/{echoing.process.pid}/status").read_text().splitlines()
    return int(next(one for one in lines if one.startswith("VmRSS")).split()[1]) * 1024


@pytest.mark.promise
def test_whatever_is_asked_has_an_answer_or_a_status_and_harms_nobody(echoing: Process, whole: bool) -> None:
    chance = random.Random(7)
    seen: collections.Counter[object] = collections.Counter()

    def call() -> None:
        path, message = chance.choice(CALLS)
        content = mutated(message, chance)
        answer = echoing.predictions.unary_unary(path, bytes, bytes).future(content, timeout=LONG)
        code, said = answer.code(), answer.details()
        assert code is grpc.StatusCode.OK or (code in REFUSED and said), (path, content, code, said)
        seen[code] += 1

    def post() -> None:
        if chance.random() < 0.5:
            request(f"/v1/models/m:{chance.choice(PATHS)}", mutated_json(chance.choice(BODIES), chance))
            return
        body, behind = chance.choice(OF_KSERVE)
        text = mutated_json(body, chance)
        length = len(text) + (chance.choice((-1, 1, 1000)) if chance.random() < 0.1 else 0)
        headers = {"Inference-Header-Content-Length": str(length)} if behind else {}
        request("/v2/models/m/infer", text + behind[: chance.choice((7, 16, 16, 16))], headers)

    def request(path: str, body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        connection = http.client.HTTPConnection(echoing.http_address, timeout=LONG)
        connection.request("POST", path, body, dict(headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        assert answer.status in (200, 400, 404, 412, 501), (body, answer.status, content)
        assert content, body
        seen[answer.status] += 1

    kinds: list[Callable[[], None]] = [call, call, call, post]
    for _ in range(1000):
        chance.choice(kinds)()
    assert is_answered(echoing)
    before = memory(echoing)
    for number in range(50_000 if whole else 2000):
        chance.choice(kinds)()
        if number % 500 == 0:
            assert is_answered(echoing)
    assert is_answered(echoing)
    grown = memory(echoing) - before
    sys.stdout.write(f"\n{dict(seen.most_common())}, {grown / MB:.1f} MB more\n")
    assert min(seen[grpc.StatusCode.OK], seen[200], seen[grpc.StatusCode.INVALID_ARGUMENT], seen[400]) > 10
    assert grown < 32 * MB
    assert "Traceback" not in "".join(echoing.lines)
