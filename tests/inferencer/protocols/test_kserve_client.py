"""Triton's clients for gRPC, unmodified and in a process of their own, through every call that they offer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

from paramsync.kserve import open_inference_pb2 as pb
from tests.support.kserve import SERVICE, serving
from tests.support.programs import PATIENCE, ROOT
from tests.support.values import VALUES

pytestmark = pytest.mark.slow

_Y = [[-1.0, -2.0], [-3.0, -4.0]]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with serving(tmp_path_factory.mktemp("echo")) as (running, _):
        command = [sys.executable, "-m", "tests.support.kserve_client", "grpc", str(running.port)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)


def test_messages_have_the_numbers_and_kinds_that_clients_have(said: dict[str, Any]) -> None:
    theirs = said["fields"]["messages"]

    def check(message: Descriptor) -> None:
        for one in message.fields:
            known = theirs[message.full_name][one.name]
            assert [one.number, one.type, one.is_repeated] == known, f"{message.full_name}.{one.name}"
        for nested in message.nested_types:
            check(nested)

    for name, message in pb.DESCRIPTOR.message_types_by_name.items():
        if name != "NotOffered":
            check(message)
    streaming = {one.name: [one.client_streaming, one.server_streaming] for one in SERVICE.methods}
    assert streaming == said["fields"]["methods"]


def test_what_there_is_is_described(said: dict[str, Any]) -> None:
    found = said["described"]
    assert (found["live"], found["ready"], found["not ready"]) == (True, [False, True, True], [False] * 3)
    assert found["server"]["name"] == "paramsync"
    model = found["model"]
    assert (model["name"], model["versions"]) == ("m", ["3", "4"])
    assert {one["name"]: (one["datatype"], one["shape"]) for one in model["inputs"]} == {
        name.lower(): (name, ["-1"]) for name in VALUES
    }
    assert [(one["name"], one.get("version"), one["state"]) for one in found["index"]["models"]] == [
        ("m", "4", "READY"), ("m", "3", "READY"), ("empty", None, "UNAVAILABLE")
    ]  # fmt: skip
    assert "no version from store" in found["index"]["models"][-1]["reason"]
    assert said["refusals"]["load"] == ["", ""]


def test_answers_come_back_whole_and_name_their_version(said: dict[str, Any]) -> None:
    found = said["answers"]
    assert found["same"] == dict.fromkeys(VALUES, True)
    assert (found["plain"], found["later"], found["sequence"]) == (["a", "4", _Y], ["b", "4", _Y], ["", "4", _Y])
    assert found["named"] == [4, 3, 3]
    assert found["gzip"] == found["deflate"] == ["", "4", _Y]


def test_a_stream_is_answered_in_order_and_goes_on_after_a_refusal(said: dict[str, Any]) -> None:
    ids = [one[0] for one in said["streamed"]]
    assert ids == ["0", "1", "refused", "3", "4"]
    assert said["streamed"][2][1] == "model 'other' is not served here; served: 'empty', 'm'"
    assert said["streamed"][4] == ["4", "4", [[-4.0, -8.0], [-12.0, -16.0]]]


def test_statistics_count_requests_rows_and_calls_of_each_version(said: dict[str, Any]) -> None:
    [one] = said["statistics"]
    assert (one["name"], one["version"]) == ("m", "4")
    assert int(one["last_inference"]) > 1.7e12
    answered = one["inference_stats"]["success"]
    assert (int(answered["count"]), int(one["inference_count"])) == (11, 3 + 2 * 10)
    assert 0 < int(one["execution_count"]) <= 11
    assert 0 < int(one["inference_stats"]["compute_infer"]["ns"]) < int(answered["ns"])


@pytest.mark.parametrize(("what", "code", "text"), [
    ("no metadata", "NOT_FOUND", "model 'other' is not served here"),
    ("shared input", "UNIMPLEMENTED", "'x': shared memory is not offered"),
    ("classes", "UNIMPLEMENTED", "'y': classification is not offered"),
    ("load other", "NOT_FOUND", "model 'other' is not served here"),
    ("load empty", "UNAVAILABLE", "no version from store"),
    ("load config", "INVALID_ARGUMENT", "parameters: expected none"),
    ("unload", "UNIMPLEMENTED", "model 'm' stays: callers do not remove models"),
    ("config", "UNIMPLEMENTED", "ModelConfig is not offered: ModelMetadata has the inputs"),
    ("shared memory", "UNIMPLEMENTED", "shared memory is not offered; send contents"),
    ("register", "UNIMPLEMENTED", "shared memory is not offered; send contents"),
    ("cuda", "UNIMPLEMENTED", "shared memory is not offered; send contents"),
    ("trace", "UNIMPLEMENTED", "tracing is not offered"),
    ("log", "UNIMPLEMENTED", "the log has no settings"),
])  # fmt: skip
def test_a_refusal_has_a_code_and_says_why(said: dict[str, Any], what: str, code: str, text: str) -> None:
    found, message = said["refusals"][what]
    assert (found, text in message) == (f"StatusCode.{code}", True), message
