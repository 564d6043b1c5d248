"""The program as a process: it starts, follows, speaks to a service manager, and ends without losing a request."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb
from tests.support.inferencers import LONG, Predict, Process, of_gated, of_witness
from tests.support.programs import PATIENCE, events, eventually, refused
from tests.support.published import Gated, Publisher, proven

pytestmark = pytest.mark.slow


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
TOO_MANY = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "m"


@pytest.fixture
def program(store: Path) -> Iterator[Process]:
    with Process.of(store, workers=2) as program:
        yield program


def test_it_starts_without_a_store_and_serves_once_something_is_published(program: Process, store: Path) -> None:
    assert program.health.Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING
    with pytest.raises(grpc.RpcError) as raised:
        program.predict(of_witness(), timeout=LONG)
    assert raised.value.code() is UNAVAILABLE
    assert str(store) in str(raised.value.details())
    watched = program.health.Watch(health_pb2.HealthCheckRequest(service="m"), timeout=LONG)
    assert next(watched).status == NOT_SERVING
    publisher = Publisher(store)
    publisher.publish(3)
    assert next(watched).status == SERVING  # nobody asked for a sync
    answer = program.predict(of_witness(), timeout=LONG)
    assert proven(list(answer.outputs["seen"].float_val), answer.model_spec.version.value)
    assert answer.model_spec.version.value == 3
    publisher.close()
    port = program.address.rpartition(":")[2]
    said = refused("inferencer", "--model", f"m={store}", "--port", port, "--rest-port", "0", "--control-port", "0")
    assert "is taken" in said  # though workers of one server share it
    assert program.end(signal.SIGINT) == 0
    assert "Traceback" not in "".join(program.lines)


@pytest.mark.promise
def test_what_a_file_says_is_served_on_three_ports_and_a_pin_survives_a_kill(
    publisher: Publisher, store: Path, tmp_path: Path
) -> None:
    config = tmp_path / "models.toml"
    config.write_text('[server]\nstate = "state"\n[models.m]\nstore = "m"\n[models.empty]\nstore = "empty"\n')
    publisher.publish(1)
    first = Process("--config", config)
    first.connect()
    first.sync.Pin(pb.PinRequest(model="m", version=1), timeout=LONG)
    publisher.publish(2)
    first.close()  # kill -9
    second = Process("--config", config)
    second.connect()
    eventually(lambda: serves(second, "m"), lambda: "m to serve")
    assert not serves(second, "empty")
    assert second.http("POST", "/v1/models/m:predict", {"inputs": [[1.0, 1.0]]})[0] == 200
    assert second.predict(of_witness(), timeout=LONG).model_spec.version.value == 1
    [status] = second.sync.GetStatus(pb.GetStatusRequest(model="m"), timeout=LONG).models
    assert (status.pinned, status.published.number) == (1, 2)
    assert second.http("GET", "/healthz")[0] == 503
    assert second.end(signal.SIGTERM) == 0
    second.close()


def serves(program: Process, model: str) -> bool:
    return bool(program.health.Check(health_pb2.HealthCheckRequest(service=model), timeout=LONG).status == SERVING)


# The end --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gated(program: Process, publisher: Publisher) -> Process:
    """It serves version 4, whose calls end when a test lets them."""
    publisher.publish(4, kind=Gated)
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    return program


@pytest.fixture
def serving(program: Process, publisher: Publisher) -> Process:
    publisher.publish(4)
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    return program


@pytest.mark.promise
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_requests_in_flight_at_the_first_signal_are_answered_and_a_second_one_changes_nothing(
    gated: Process, tmp_path: Path, first: signal.Signals
) -> None:
    assert gated.http("GET", "/healthz") == (200, {"status": "serving"}, True)
    watched = gated.health.Watch(health_pb2.HealthCheckRequest(), timeout=LONG)
    assert next(watched).status == SERVING
    watching = gated.sync.Watch(pb.WatchRequest(), timeout=LONG)  # a stream that nobody ends
    waiting = gated.sync.Sync(pb.SyncRequest(version=99), timeout=LONG)
    assert next(waiting).phase == pb.SyncProgress.LOOKING

    called, by_http, gate = tmp_path / "called", tmp_path / "by_http", tmp_path / "gate"
    answer = gated.predict.future(of_gated(called, gate), timeout=LONG)
    inputs = {"x": [[1.0, 1.0]], "called": str(by_http), "gate": str(gate)}
    with ThreadPoolExecutor(1) as threads:
        posted = threads.submit(gated.http, "POST", "/v1/models/m:predict", {"inputs": inputs})
        eventually(lambda: called.exists() and by_http.exists(), lambda: "the requests to be computed")
        gated.process.send_signal(first)
        assert next(watched).status == NOT_SERVING
        stopping = (503, {"error": "the server is stopping"}, False)
        eventually(lambda: gated.http("GET", "/healthz") == stopping, lambda: "the workers, one by one, to know it")
        assert not answer.done()
        with pytest.raises(grpc.RpcError, match="stopping"):
            next(waiting)
        gated.process.send_signal(signal.SIGTERM)
        gated.process.send_signal(signal.SIGINT)
        gate.touch()
        assert list(answer.result().outputs["seen"].float_val) == [4.0] * 6
        status, body, stays = posted.result(LONG)
    assert (status, body["outputs"]["seen"], stays) == (200, [4.0] * 6, False)
    assert gated.ended() == 0
    assert list(watching) == []
    text = "".join(gated.lines)
    assert "Traceback" not in text
    assert "inferencer stopped" in text


def test_a_computation_that_never_ends_is_given_up_after_the_grace(gated: Process, tmp_path: Path) -> None:
    called = tmp_path / "called"
    answer = gated.predict.future(of_gated(called, tmp_path / "never"), timeout=LONG)
    eventually(called.exists, lambda: "the request to be computed")
    assert gated.end(signal.SIGTERM) == 0
    assert answer.code() is not OK
    text = "".join(gated.lines)
    assert "Traceback" not in text
    assert "are given up: 1\n" in text


def connected(program: Process, count: int) -> list[Predict]:
    """As many clients of one process, each with a connection of its own that stands."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.insecure_channel(program.address, options) for _ in range(count)]
    for channel in channels:
        grpc.channel_ready_future(channel).result(LONG)
    return [prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict for channel in channels]


@pytest.mark.promise
def test_no_call_sent_before_sigterm_is_lost(serving: Process) -> None:
    clients = connected(serving, 8)
    answers = [clients[at % 8].future(of_witness(), timeout=LONG) for at in range(400)]
    serving.process.send_signal(signal.SIGTERM)
    codes = Counter(answer.code() for answer in answers)
    assert set(codes) <= {OK, UNAVAILABLE, TOO_MANY}, codes
    assert codes[OK] >= 256, codes
    assert serving.ended() == 0


def test_a_service_says_when_it_is_ready_and_when_it_stops_and_logs_one_event_a_line(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish(3)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        program = Process("--model", f"m={tmp_path / 'm'}", "--workers", "1", "--log-format", "json")
        try:
            state, status = manager.recv(4096).decode().split("\n")
            assert state == "READY=1"
            assert re.fullmatch(r"STATUS=predictions \S+:\d+, control \S+:\d+, HTTP \S+:\d+", status)
            publisher.publish_bad(4)
            eventually(lambda: [one for one in program.lines if "quarantined" in one], lambda: "a quarantine")
            program.process.send_signal(signal.SIGTERM)
            assert manager.recv(4096) == b"STOPPING=1\nSTATUS=answering what is in flight"
            assert program.ended() == 0
        finally:
            program.close()
    logged = events(program.lines)
    assert all(event.keys() >= {"time", "level", "logger", "message"} for event in logged)
    [served] = [event for event in logged if "serves" in event["message"]]
    assert (served["model"], served["version"], served["level"]) == ("m", 3, "INFO")
    [refused] = [event for event in logged if "quarantined" in event["message"]]
    assert (refused["model"], refused["version"], refused["level"]) == ("m", 4, "WARNING")
    assert logged[-1]["message"] == "inferencer stopped"


def test_a_service_that_is_stopped_before_it_is_ready_has_nothing_go_wrong(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(1)
    program = Process("--model", f"m={tmp_path / 'm'}", "--workers", "1")
    try:
        eventually(lambda: "control " in "".join(program.lines), lambda: "a control port")
        os.kill(program.template, signal.SIGSTOP)  # which imports TensorFlow
        [address] = re.findall(r"control (\S+) answers; importing TensorFlow", "".join(program.lines))
        with Inferencer(address) as inferencer:
            [worker] = inferencer.report().workers
            assert (worker.state, worker.pid) == (pb.WorkerStatus.STARTING, 0)
            assert not inferencer.serves()
        asked = [sys.executable, "-m", "paramsync.cli", "status", "--server", address]
        shown = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout
        assert re.search(r"^workers: starting, importing TensorFlow, \d[^,]*$", shown, re.MULTILINE), shown
        program.process.send_signal(signal.SIGTERM)
        assert program.ended() == 0
    finally:
        program.close()
    logged = "".join(program.lines)
    assert "inferencer ready" not in logged
    assert "does not start" not in logged  # as a worker does that is forked once TensorFlow was imported all the same
    assert "quarantined" not in logged
