"""Traces: a publication is one, from its step until it serves, and a prediction continues its caller's."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from paramsync.kserve import open_inference_pb2 as kserve
from paramsync.store.store import Store
from tests.support.inferencers import LONG, Process
from tests.support.programs import ROOT, eventually
from tests.support.traces import Collector, Seen, collector

pytestmark = pytest.mark.slow

_TRACE, _CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
_PARENT = f"00-{_TRACE}-{_CALLER}-01"
_STEPS = 2


def train(store: Path) -> None:
    command = [sys.executable, "-m", "trainer", "--store", str(store), "--steps", str(_STEPS), "--every-steps", "1"]
    subprocess.run([*command, "--control-port", "0"], cwd=ROOT, check=True, timeout=2 * LONG)


def of_digits() -> predict_pb2.PredictRequest:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = "m"
    message.inputs["image"].CopyFrom(tf.make_tensor_proto(np.zeros([1, 784], np.float32)))
    return message


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collector, Process, Path]]:
    """A collector, an inferencer that serves the last version of a training, and their store."""
    store = tmp_path_factory.mktemp("traced") / "store"
    with collector() as spans, pytest.MonkeyPatch.context() as patch:
        for name, value in spans.environment.items():
            patch.setenv(name, value)
        program = Process("--model", f"m={store}", "--workers", "1", "--rest-port", "0")
        try:
            program.connect()
            train(store)
            spans.wait(lambda seen: any(is_of(span, "swap", _STEPS, seen) for span in seen))
            yield spans, program, store
        finally:
            program.close()


def is_of(span: Seen, name: str, version: int, seen: list[Seen]) -> bool:
    """Whether it has this name, and is below a span of this version."""
    return span.name == name and any(
        one.id == span.parent and one.attributes.get("paramsync.version") == version for one in seen
    )


def test_a_publication_is_one_trace_from_its_step_until_it_serves(there: tuple[Collector, Process, Path]) -> None:
    spans, _, store = there
    version = Store(store).find(_STEPS)
    trace, publish_id = version.traceparent.split("-")[1:3]
    expected = {"publish", "snapshot", "write", "commit", "serve", "restore", "swap"}
    seen = spans.wait(lambda seen: expected <= {span.name for span in seen if span.trace == trace})
    named = {span.name: span for span in seen if span.trace == trace}
    publish, serve = named["publish"], named["serve"]
    assert (publish.service, publish.id, publish.parent) == ("paramsync-trainer", publish_id, "")
    assert (serve.service, serve.parent) == ("paramsync-inferencer", publish_id)
    assert {named[name].parent for name in ("snapshot", "write", "commit")} == {publish_id}
    assert {named[name].parent for name in ("restore", "swap")} == {serve.id}
    for span in (publish, serve):
        assert (span.attributes["paramsync.version"], span.attributes["paramsync.step"]) == (_STEPS, _STEPS)
    assert publish.attributes["paramsync.bytes"] == version.bytes
    assert publish.begin == int(version.step_done_at * 1e9)
    order = [named[name] for name in ("snapshot", "write", "commit", "restore", "swap")]
    assert [span.begin for span in order] == sorted(span.begin for span in order)
    assert all(span.begin <= span.end for span in order)
    assert not any(span.failed for span in named.values())


def test_a_prediction_by_each_protocol_continues_the_trace_of_its_caller(
    there: tuple[Collector, Process, Path],
) -> None:
    spans, program, _ = there
    metadata = (("traceparent", _PARENT),)
    answer, _ = program.predict.with_call(of_digits(), timeout=LONG, metadata=metadata)
    infer = program.predictions.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=kserve.ModelInferRequest.SerializeToString,
        response_deserializer=kserve.ModelInferResponse.FromString,
    )
    request = kserve.ModelInferRequest(model_name="m")
    request.inputs.add(name="image", datatype="FP32", shape=[1, 784]).contents.fp32_contents.extend([0.0] * 784)
    infer(request, timeout=LONG, metadata=metadata)
    posted(program, "/v1/models/m:predict", {"instances": [[0.0] * 784]})
    body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 784], "data": [0.0] * 784}]}
    posted(program, "/v2/models/m/infer", body)
    unknown = of_digits()
    unknown.model_spec.name = "unknown"
    with pytest.raises(grpc.RpcError):
        program.predict(unknown, timeout=LONG, metadata=metadata)

    seen = spans.wait(lambda seen: sum(span.trace == _TRACE for span in seen) == 5)
    mine = [span for span in seen if span.trace == _TRACE]
    assert {(span.parent, span.service, span.failed) for span in mine} == {(_CALLER, "paramsync-inferencer", False)}
    tfs, v2 = "tensorflow.serving.PredictionService", "inference.GRPCInferenceService"
    about = {"paramsync.model": "m", "paramsync.signature": "serving_default", "paramsync.version": _STEPS}
    assert answer.model_spec.version.value == _STEPS
    by_name = {span.name: span.attributes for span in mine if span.attributes["paramsync.model"] == "m"}
    ok = {"rpc.system": "grpc", "rpc.grpc.status_code": 0, **about}
    posts = {"http.request.method": "POST", "http.response.status_code": 200, **about}
    assert by_name == {
        f"{tfs}/Predict": {"rpc.service": tfs, "rpc.method": "Predict", **ok},
        f"{v2}/ModelInfer": {"rpc.service": v2, "rpc.method": "ModelInfer", **ok},
        "POST /v1/models/{model}:predict": {"http.route": "/v1/models/{model}:predict", **posts},
        "POST /v2/models/{model}/infer": {"http.route": "/v2/models/{model}/infer", **posts},
    }
    [refused] = [span.attributes for span in mine if span.attributes["paramsync.model"] == "unknown"]
    assert refused["rpc.grpc.status_code"] == 5
    assert "paramsync.version" not in refused


def test_a_collector_that_dies_costs_one_line_and_no_answer(there: tuple[Collector, Process, Path]) -> None:
    spans, program, _ = there
    spans.stop()

    def lost() -> list[str] | None:
        program.predict(of_digits(), timeout=LONG)
        return [line for line in program.lines if "traces are lost" in line] or None

    eventually(lost, lambda: "".join(program.lines))
    program.predict(of_digits(), timeout=LONG)  # whose span waits when the server ends
    assert program.end(signal.SIGTERM) == 0
    assert sum("traces are lost" in line for line in program.lines) == 1
    assert not [line for line in program.lines if "Traceback" in line or "opentelemetry" in line]


def posted(program: Process, path: str, body: Any) -> None:
    connection = http.client.HTTPConnection(program.http_address, timeout=LONG)
    connection.request("POST", path, json.dumps(body), {"Traceparent": _PARENT})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    connection.close()
