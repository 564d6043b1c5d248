"""What /metrics says, read by Prometheus's own parser: of known traffic, of swaps, of names that requests made up."""

from __future__ import annotations

import itertools
import os
import re
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inferencer.serving.counts import Scrubbed
from inferencer.serving.metrics import APART, Metrics
from inferencer.serving.prometheus import CONTENT_TYPE, Exposition
from inferencer.serving.worker_status import WorkerState, WorkerStatus
from paramsync.kserve import open_inference_pb2 as kserve_pb2
from paramsync.remote.bucket_status import BucketStatus, Copied
from paramsync.remote.copy_note import CopyNote
from tests.support.in_process import InProcess
from tests.support.kserve import method
from tests.support.programs import ROOT, eventually
from tests.support.prometheus import promtool
from tests.support.published import Publisher
from tests.support.running import LONG, Running, refused, request, synced

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]
_M = (("model", "m"),)


def read(metrics: Metrics) -> Samples:
    return parsed(Exposition(metrics).text())


def told(found: Samples, name: str) -> list[tuple[dict[str, str], float]]:
    return [(dict(one), value) for one, value in found[name].items()]


def parsed(text: bytes) -> Samples:
    """The values by name and labels."""
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for one in family.samples:
            found.setdefault(one.name, {})[tuple(sorted(one.labels.items()))] = one.value
    return found


def labels(**of: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"model": "m", "signature": "serving_default", "version": "7", **of}.items()))


@pytest.fixture
def metrics(in_process: InProcess) -> Metrics:
    """Of the models of a server, which counts its own requests elsewhere."""
    return Metrics(in_process.models, clock=itertools.count(1.0).__next__)


@pytest.fixture
def answered(metrics: Metrics) -> Callable[..., None]:
    """Counts one request of version 7."""

    def count(**of: Any) -> None:
        known = {"model": "m", "signature": "serving_default", "version": "7", "protocol": "kserve", "code": "OK"}
        metrics.answered(**{**known, "seconds": 0.003, **of})

    return count


def test_a_process_fails_once_requests_failed_for_a_while_and_none_was_answered() -> None:
    now = 100.0
    metrics = Metrics(clock=lambda: now)
    request: dict[str, Any] = {"model": "", "signature": "", "version": "", "protocol": "rest", "seconds": 0.1}
    for _ in range(30):
        metrics.answered(**request, code="INTERNAL", unforeseen=True)
        metrics.answered(**request, code="INTERNAL")  # a graph's fault
        metrics.answered(**request, code="NOT_FOUND")
    assert metrics.failing == ""
    now += 12.0
    assert metrics.failing == "30 requests in a row failed in ways nobody foresaw, for 12 s; the log has them"
    metrics.answered(**request, code="OK")
    assert metrics.failing == ""


def test_requests_are_counted_by_what_they_were_and_timed_where_they_were_answered(
    metrics: Metrics, answered: Callable[..., None]
) -> None:
    for seconds in (0.0001, 0.003, 20.0):
        answered(seconds=seconds)
    answered(code="INVALID_ARGUMENT", seconds=0.5)
    answered(protocol="rest", code="RESOURCE_EXHAUSTED")
    found = read(metrics)
    assert found["paramsync_requests_total"] == {
        labels(protocol="kserve", code="OK"): 3,
        labels(protocol="kserve", code="INVALID_ARGUMENT"): 1,
        labels(protocol="rest", code="RESOURCE_EXHAUSTED"): 1,
    }
    buckets = found["paramsync_request_duration_seconds_bucket"]
    at = {
        bound: buckets[labels(protocol="kserve", le=bound)] for bound in ("0.0001", "0.0025", "0.005", "10.0", "+Inf")
    }
    assert at == {"0.0001": 1, "0.0025": 1, "0.005": 2, "10.0": 2, "+Inf": 3}
    assert found["paramsync_request_duration_seconds_count"] == {labels(protocol="kserve"): 3}
    assert found["paramsync_request_duration_seconds_sum"] == {labels(protocol="kserve"): pytest.approx(20.0031)}


def test_calls_are_counted_by_their_rows_and_requests(metrics: Metrics) -> None:
    for requests, rows in ((1, 1), (3, 40), (300, 5000)):
        metrics.called(model="m", signature="serving_default", version="7", requests=requests, rows=rows, seconds=0.5)
    found = read(metrics)
    for name, sums, bounds in (
        ("paramsync_batch_requests", 304, {"1": 1, "4": 2, "256": 2, "512": 3, "+Inf": 3}),
        ("paramsync_batch_rows", 5041, {"1": 1, "32": 1, "64": 2, "1024": 2, "+Inf": 3}),
    ):
        assert found[f"{name}_sum"] == {labels(): sums}
        assert {bound: found[f"{name}_bucket"][labels(le=bound)] for bound in bounds} == bounds
    one = metrics.statistics("m")["7"]
    assert (one.calls, one.rows, one.computed, one.computed_seconds) == (3, 5041, 304, 152.0)


def test_names_that_requests_made_up_are_no_labels(metrics: Metrics, answered: Callable[..., None]) -> None:
    for number in range(100):
        answered(model=f"model {number}")
        answered(signature=f"signature {number}")
        answered(version=str(1000 + number))
        answered(version=f"label {number}")
        metrics.called(model=f"model {number}", signature="s", version="1", requests=1, rows=1, seconds=0.1)
    assert read(metrics)["paramsync_requests_total"] == {
        labels(model="", signature="", version="", protocol="kserve", code="OK"): 100,
        labels(signature="", protocol="kserve", code="OK"): 100,
        labels(signature="", version="older", protocol="kserve", code="OK"): 200,
    }
    assert len(metrics.calls) == 1


def test_versions_that_answered_last_are_told_apart_and_nothing_is_lost_of_the_others(
    metrics: Metrics, answered: Callable[..., None], in_process: InProcess, publisher: Publisher
) -> None:
    for number in range(7, 27):
        if number > 7:
            in_process.restore(publisher.publish(number))
        answered(version=str(number))
        metrics.called(model="m", signature="serving_default", version=str(number), requests=1, rows=2, seconds=0.1)
        answered(version="7") if number < 12 else None  # after which it is the one that answered longest ago
    found = read(metrics)
    counts = {dict(one)["version"]: value for one, value in found["paramsync_requests_total"].items()}
    assert counts == {**{str(number): 1 for number in range(27 - APART, 27)}, "older": 20 + 5 - APART}
    assert sum(found["paramsync_batch_rows_sum"].values()) == 40
    assert set(metrics.statistics("m")) == set(counts) - {"older"}


def test_without_models_nothing_is_known_by_name() -> None:
    metrics = Metrics()
    metrics.answered(model="m", signature="s", version="7", protocol="tfs", code="OK", seconds=0.1)
    [found] = read(metrics)["paramsync_requests_total"]
    assert dict(found) == {"model": "", "signature": "", "version": "", "protocol": "tfs", "code": "OK"}


def test_before_anything_serves_it_says_so(running: Running) -> None:
    found = read(Metrics(running.server.models))
    states = {dict(one)["state"]: value for one, value in found["paramsync_model_state"].items()}
    assert states == {"waiting": 1, "serving": 0, "damaged": 0, "draining": 0}
    assert found["paramsync_resident_versions"] == {_M: 0}
    assert "paramsync_served_version" not in found


def test_what_followers_do_is_told(served: Running, publisher: Publisher) -> None:
    metrics = Metrics(served.server.models)
    publisher.publish(8)
    synced(served)
    publisher.publish_bad(9)
    follower = served.server.models.follower("m")
    eventually(lambda: follower.status().quarantined, lambda: "version 9 to be quarantined")
    metrics.waiting = lambda: 3
    follower.label("stable", 7, timeout=LONG)
    follower.pin(7, timeout=LONG)
    found = read(metrics)
    for name, value in {
        "served_version": 7,
        "served_step": 7,
        "lag_versions": 2,
        "lag_steps": 2,
        "quarantined_versions": 1,
        "resident_versions": 2,
        "pinned": 1,
        "restores_total": 2,
        "swaps_total": 3,
        "quarantines_total": 1,
        "restore_duration_seconds_count": 2,
        "swap_duration_seconds_count": 3,
    }.items():
        assert found[f"paramsync_{name}"] == {_M: value}, name
    assert 0 < found["paramsync_swap_duration_seconds_sum"][_M] < 1
    assert 0 < found["paramsync_restore_duration_seconds_sum"][_M] < LONG
    assert 0 < found["paramsync_lag_seconds"][_M] < LONG
    assert found["paramsync_label_version"] == {(("label", "stable"), *_M, ("version", "7")): 7}
    assert found["paramsync_queue_depth"] == {(): 3}
    assert found["process_resident_memory_bytes"][()] > 1e6
    [build] = found["paramsync_build_info"]
    assert set(dict(build)) == {"version", "tensorflow", "python"}


def test_a_waiting_version_and_the_lateness_of_a_swap_are_told(served: Running, publisher: Publisher) -> None:
    metrics, follower = Metrics(served.server.models), served.server.models.follower("m")
    assert not {"paramsync_next_version", "paramsync_swap_skew_seconds"} & read(metrics).keys()
    publisher.publish(8, serve_after=0.1)
    assert synced(served)[-1].status.serving.number == 8
    assert read(metrics)["paramsync_swap_skew_seconds"][_M] >= 0.0
    publisher.publish(9, serve_after=3000)
    eventually(lambda: follower.status().next == 9, lambda: f"version 9 in memory: {follower.status()}")
    assert read(metrics)["paramsync_next_version"] == {_M: 9}


def test_requests_by_every_protocol_are_counted_in_what_the_server_shows(served: Running) -> None:
    ask = kserve_pb2.ModelInferRequest(model_name="m", raw_input_contents=[np.ones([2, 2], np.float32).tobytes()])
    ask.inputs.add(name="x", datatype="FP32", shape=[2, 2])
    for _ in range(3):
        served.prediction_service.Predict(request(), timeout=LONG)
        method(served, "ModelInfer")(ask, timeout=LONG)
    ask.inputs[0].datatype = "FP64"
    refused(method(served, "ModelInfer"), ask)
    refused(served.prediction_service.Predict, request("other"))
    http = f"http://127.0.0.1:{served.rest_port}"
    body = b'{"inputs": [[1.0, 2.0]]}'
    with urllib.request.urlopen(f"{http}/v1/models/m:predict", body, timeout=LONG) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"{http}/metrics", timeout=LONG) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        found = parsed(answer.read())
    by = {(one["protocol"], one["code"]): value for one, value in told(found, "paramsync_requests_total")}
    answered = {(protocol, "OK"): count for protocol, count in (("tfs", 3), ("kserve", 3), ("rest", 1))}
    assert by == {**answered, ("kserve", "INVALID_ARGUMENT"): 1, ("tfs", "NOT_FOUND"): 1}
    assert {one["version"] for one, _ in told(found, "paramsync_requests_total") if one["code"] == "OK"} == {"7"}
    assert found["paramsync_batch_requests_sum"] == {labels(): 7}
    assert found["paramsync_batch_rows_sum"] == {labels(): 3 + 2 * 3 + 1}


BUCKET = BucketStatus(
    address="s3://b/m",
    reason="version 9 came damaged",
    answered_at=1.0,
    newest=9,
    behind=2,
    waiting_since=1.0,
    copied=Copied(
        number=7, step_done_at=1.0, published_at=2.0, in_bucket_at=4.0, here_at=7.0, way="delta", deltas=2, bytes=10,
        size=1000, seconds=2.0,
    ),
    whole_bytes=1000,
    delta_bytes=10,
    failures=3,
)  # fmt: skip


def test_what_a_mirror_notes_is_told(served: Running) -> None:
    follower = served.server.models.follower("m")
    CopyNote("s3://b/m", status=BUCKET).write(follower.status().store, 1.0)
    eventually(lambda: follower.status().bucket, lambda: "the note of a mirror")
    found = read(Metrics(served.server.models))
    stages = {dict(one)["stage"]: value for one, value in found["paramsync_bucket_stage_duration_seconds"].items()}
    assert stages.pop("serve") > 0
    assert stages == {"publish": 1, "upload": 2, "download": 3}
    assert found["paramsync_bucket_lag_versions"] == {_M: 2}
    assert found["paramsync_bucket_failing"] == {_M: 1}
    assert found["paramsync_bucket_failures_total"] == {_M: 3}
    assert found["paramsync_bucket_answer_age_seconds"][_M] > 1e9
    assert found["paramsync_bucket_lag_seconds"][_M] > 1e9
    by_way = {dict(one)["way"]: value for one, value in found["paramsync_bucket_received_bytes_total"].items()}
    assert by_way == {"whole": 1000, "delta": 10}


@pytest.fixture
def whole_text(served: Running) -> bytes:
    """A page of a copy of a bucket, on which every metric has a value but the state of a publisher."""
    metrics = Metrics(served.server.models)
    counts = Metrics()
    counts.answered(model="m", signature="s", version="7", protocol="tfs", code="OK", seconds=0.1)
    counts.called(model="m", signature="serving_default", version="7", requests=1, rows=1, seconds=0.1)
    metrics.take_in(counts.requests, counts.calls)
    workers = [WorkerStatus(0, WorkerState.ANSWERING, 1.0, os.getpid(), 3)]
    follower = served.server.models.follower("m")
    CopyNote("s3://b/m", status=BUCKET).write(follower.status().store, 1.0)
    eventually(lambda: follower.status().bucket, lambda: "the note of a mirror")
    return Exposition(metrics, workers=workers, scrubbed=Scrubbed(bytes=4096, at=1.0)).text()


def test_promtool_finds_nothing_to_mend(whole_text: bytes) -> None:
    assert promtool("check", "metrics", given=whole_text) == ""


@pytest.mark.parametrize("file", ["alerts.yml", "dashboard.json"])
def test_what_is_monitored_is_told(whole_text: bytes, file: str) -> None:
    named = set(re.findall(r"\b(?:paramsync|process)_[a-z_]+", (ROOT / "deploy" / "monitoring" / file).read_text()))
    trainers = {name for name in named if name.startswith("paramsync_trainer_")}
    assert trainers
    assert named - trainers - {"paramsync_publisher_state"} <= parsed(whole_text).keys()  # the state of a directory's
    reference = (ROOT / "docs" / "reference.md").read_text()  # which has what a trainer tells, see its own tests
    assert [name for name in sorted(trainers) if f"`{name}`" not in reference] == []


def test_docs_list_every_metric(whole_text: bytes) -> None:
    text = (ROOT / "docs" / "reference.md").read_text().partition("## Metrics of an inferencer")[2]
    text = text.partition("\n## ")[0]
    names = re.findall(r"^\| (`paramsync_[^|]*)", text, re.MULTILINE)
    listed = set(re.findall(r"paramsync_\w+", " ".join(names)))
    families = text_string_to_metric_families(whole_text.decode())
    told = {one.name + "_total" * (one.type == "counter") + "_info" * (one.type == "info") for one in families}
    assert listed == {one for one in told if one.startswith("paramsync_")}
