"""KServe's second protocol by HTTP: Triton's client, unmodified, and bodies by hand."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.http import call
from tests.support.kserve import serving
from tests.support.programs import PATIENCE, ROOT
from tests.support.running import Running
from tests.support.values import VALUES

INFER = "/v2/models/m/infer"
X = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}
NEGATED = {"signature": "negated"}
BINARY = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
HALF = "\ud800"  # of a pair: JSON may have it, a message may not
LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("echo")) as (running, _):
        yield running


def posted(running: Running, body: Any, behind: bytes = b"", path: str = INFER, **headers: str) -> Any:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    if behind:
        headers = {LENGTH.replace("-", "_"): str(len(text)), **headers}
    return call(running.rest_port, "POST", path, text + behind, **headers)


@pytest.mark.slow
def test_the_client_of_triton_finds_all_it_asks_for(running: Running) -> None:
    command = [sys.executable, "-m", "tests.support.kserve_client", "http", str(running.rest_port)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    y = [[-1.0, -2.0], [-3.0, -4.0]]
    answers = said["answers"]
    assert set(answers["same"]) == set(VALUES)
    assert all(answers["same"].values())
    for kind, expected in {"plain": ["a", "4", y], "json": ["", "4", y], "mixed": ["", "4", y], "later": ["b", "4", y],
                           "gzip": ["", "4", y], "deflate": ["", "4", y],
                           "gzip back": ["", "4", y]}.items():  # fmt: skip
        assert answers[kind] == expected, kind
    assert answers["named"] == [4.0, 3.0, 3.0]
    described = said["described"]
    assert (described["live"], described["ready"], described["not ready"]) == (True, [False, True, True], [False] * 3)
    assert described["server"]["name"] == "paramsync"
    assert "binary_tensor_data" in described["server"]["extensions"]
    assert described["model"]["versions"] == ["3", "4"]
    assert {one["name"]: (one["datatype"], one["shape"]) for one in described["model"]["inputs"]} == {
        name.lower(): (name, [-1]) for name in VALUES
    }
    assert [(one["name"], one["version"], one["state"]) for one in described["index"]] == [
        ("m", "4", "READY"), ("m", "3", "READY"), ("empty", "", "UNAVAILABLE")
    ]  # fmt: skip
    assert {one["version"]: one["inference_stats"]["fail"]["count"] for one in said["statistics"]} == {
        "3": 0, "4": 0
    }  # fmt: skip
    assert [one["version"] for one in said["of one version"]] == ["3"]
    assert {(one["name"], one["version"]) for one in said["of all models"]} == {("m", "3"), ("m", "4")}
    codes = {kind: status for kind, (status, _) in said["refusals"].items()}
    assert codes == {
        "unknown model": "404", "no version": "503", "no metadata": "404", "no such version": "404",
        "no statistics": "404", "wrong datatype": "400", "shared input": "501", "classes": "501", "load": "",
        "load other": "404", "load empty": "503", "load config": "400", "unload": "501", "config": "501",
        "shared memory": "501", "register": "501", "unregister": "501", "cuda": "501", "trace": "501", "log": "501",
        "log set": "501",
    }  # fmt: skip


def test_json_alone_is_answered_as_json(running: Running) -> None:
    got = posted(running, {"id": "7", "parameters": NEGATED, "inputs": [X], "outputs": [{"name": "y"}]})
    assert got.status == 200, got.body
    assert got.json == {
        "model_name": "m", "model_version": "4", "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [-1.0, -2.0]}],
    }  # fmt: skip


def test_data_may_be_nested_and_versions_and_labels_are_in_the_path(running: Running) -> None:
    body = {"parameters": NEGATED, "inputs": [{**X, "data": [[1, 2]]}], "outputs": [{"name": "version"}]}
    for version, expected in (("3", 3.0), ("stable", 3.0), ("4", 4.0)):
        got = posted(running, body, path=f"/v2/models/m/versions/{version}/infer")
        assert got.json["outputs"][0]["data"] == [expected]


@pytest.mark.parametrize("rows", [1, 50_000])
def test_a_large_body_is_read_as_a_small_one(running: Running, rows: int) -> None:
    x = np.arange(2 * rows, dtype=np.float32)
    inputs = [{**X, "shape": [rows, 2], "data": x.tolist()}]
    got = posted(running, {"parameters": NEGATED, "inputs": inputs, "outputs": [{"name": "y"}]})
    [y] = got.json["outputs"]
    assert (y["shape"], y["data"]) == ([rows, 2], (-x).tolist())


def test_tensors_behind_the_json_are_taken_in_their_order(running: Running) -> None:
    outputs = [{"name": "half"}, {"name": "y", "parameters": {"binary_data": True}}]
    body = {"parameters": NEGATED, "inputs": [BINARY], "outputs": outputs}
    got = posted(running, body, struct.pack("<2f", 1, 2))
    length = int(got.headers[LENGTH])
    half, y = json.loads(got.body[:length])["outputs"]
    assert half == {"name": "half", "datatype": "FP16", "shape": [1, 2], "data": [1.0, 2.0]}
    assert (y["parameters"], "data" in y) == ({"binary_data_size": 8}, False)
    assert struct.unpack("<2f", got.body[length:]) == (-1.0, -2.0)
    assert got.headers["Content-Type"] == "application/octet-stream"


def test_all_outputs_are_bytes_where_the_request_says_so(running: Running) -> None:
    body = {"parameters": {**NEGATED, "binary_data_output": True}, "inputs": [X]}
    got = posted(running, body)
    said = json.loads(got.body[: int(got.headers[LENGTH])])
    assert {one["name"] for one in said["outputs"]} == {"y", "half", "version"}
    assert not any("data" in one for one in said["outputs"])


@pytest.mark.parametrize(
    ("body", "behind", "text"),
    [
        ({"inputs": []}, b"", "'inputs': expected a list of one or more"),
        ({"inputs": [1]}, b"", "expected a list of objects, found a number in it"),
        ({"inputs": [{**X, "name": 1}]}, b"", "the name of an input: expected a string, found a number"),
        ({"inputs": [{**X, "shape": [-1, 2]}]}, b"", "shape: expected a list of sizes"),
        ({"inputs": [{**X, "shape": 2}]}, b"", "shape: expected a list of sizes, found a number"),
        ({"inputs": [{**X, "data": [1.0]}]}, b"", "expected 2 values in data, found 1"),
        ({"inputs": [{**X, "data": ["a", "b"]}]}, b"", "found a string"),
        ({"inputs": [{**X, "data": [[1.0], [2.0, 3.0]]}]}, b"", "ragged"),
        ({"inputs": [{key: X[key] for key in ("name", "datatype", "shape")}]}, b"", "either data or binary_data_size"),
        ({"inputs": [{**X, **BINARY}]}, b"12345678", "found both"),
        ({"inputs": [BINARY]}, b"1234", "expected at most the 4 bytes that are left, found 8"),
        ({"inputs": [BINARY]}, b"123456789", "expected 8 bytes of tensors, found 9"),
        ({"inputs": [{**BINARY, "parameters": {"binary_data_size": 7}}]}, b"12345678", "expected 8 bytes"),
        (
            {"inputs": [{**BINARY, "parameters": {"binary_data_size": -1}}]},
            b"12345678",
            "bytes that are left, found -1",
        ),
        ({"inputs": [{**X, "parameters": []}]}, b"", "parameters: expected an object, found a list"),
        ({"inputs": [X], "parameters": {"signature": 1}}, b"", "parameter 'signature': expected a string"),
        ({"inputs": [X], "id": HALF}, b"", "id: expected a string of UTF-8, found half a surrogate pair"),
        ({"inputs": [{**X, "parameters": {HALF: 1}}]}, b"", "the name of a parameter: expected a string of UTF-8"),
        (b"{", b"", "expected JSON"),
        (b"", b"", "expected a JSON object, found nothing"),
    ],
)
def test_what_is_wrong_is_said_by_name(running: Running, body: Any, behind: bytes, text: str) -> None:
    if isinstance(body, dict):
        body = {"parameters": NEGATED, **body}
    got = posted(running, body, behind)
    assert (got.status, text in got.error) == (400, True), got.body


@pytest.mark.parametrize("length", ["x", "-1", "9" * 30, "1000"])
def test_a_wrong_length_of_the_json_is_refused(running: Running, length: str) -> None:
    got = posted(running, {"inputs": [X]}, Inference_Header_Content_Length=length)
    assert (got.status, LENGTH in got.error) == (400, True), got.body


def test_paths_that_mean_nothing_are_refused(running: Running) -> None:
    for method, path in (("GET", "/v2/nothing"), ("GET", INFER), ("POST", "/v2"), ("DELETE", "/v2/models/m")):
        got = call(running.rest_port, method, path)
        assert (got.status, "expected a path of KServe's protocol" in got.error) == (400, True), got.body


def test_what_is_quick_to_ask_is_there_without_a_client(running: Running) -> None:
    assert call(running.rest_port, "GET", "/v2/health/live").json == {"live": True}
    got = call(running.rest_port, "GET", "/v2/health/ready")
    assert (got.status, got.json) == (503, {"ready": False})  # one model has no version
    assert call(running.rest_port, "GET", "/v2/models/m/ready").status == 200
    ready = call(running.rest_port, "POST", "/v2/repository/index", {"ready": True}).json
    assert [one["version"] for one in ready] == ["4", "3"]
