"""The program as a process: it starts, follows, and comes back as what it was."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from paramsync.v1 import sync_pb2 as pb
from tests.support.inferencers import LONG, Process, of_witness
from tests.support.programs import eventually, refused
from tests.support.published import Publisher, proven

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "m"


@pytest.fixture
def program(store: Path) -> Iterator[Process]:
    program = Process.of(store, workers=2)
    yield program
    program.close()


@pytest.mark.slow
def test_it_starts_without_a_store_and_serves_once_something_is_published(program: Process, store: Path) -> None:
    program.connect()
    assert program.health.Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING
    with pytest.raises(grpc.RpcError) as raised:
        program.predict(of_witness(), timeout=LONG)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
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
    assert program.end(signal.SIGINT) == 0
    assert "Traceback" not in "".join(program.lines)


@pytest.mark.slow
def test_killed_and_started_again_with_a_corrupt_newest_version_it_serves_the_newest_good_one(
    publisher: Publisher, store: Path
) -> None:
    publisher.publish(1)
    first = Process.of(store)
    first.connect()
    list(first.sync.Sync(pb.SyncRequest(), timeout=LONG))
    first.close()  # kill -9
    publisher.publish(2)
    publisher.publish_corrupt(3)
    second = Process.of(store)
    second.connect()
    with pytest.raises(grpc.RpcError, match="version 3 of model 'm' is quarantined"):
        list(second.sync.Sync(pb.SyncRequest(), timeout=LONG))
    answer = second.predict(of_witness(), timeout=LONG)
    assert (answer.model_spec.version.value, proven(list(answer.outputs["seen"].float_val), 2)) == (2, True)
    second.close()


@pytest.mark.slow
def test_a_signal_before_it_is_ready_ends_it_quietly(program: Process) -> None:
    eventually(lambda: imports_tensorflow(program.process.pid), lambda: "TensorFlow to be imported")
    assert program.end(signal.SIGINT) == 0
    assert "Traceback" not in "".join(program.lines)


def imports_tensorflow(pid: int) -> bool:
    """The process, or a child of it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any("tensorflow" in Path(f"/proc/{one}/maps").read_text() for one in (pid, *children))


@pytest.mark.slow
def test_a_second_server_on_the_same_port_is_refused(program: Process, store: Path) -> None:
    program.connect()
    port = re.search(r"predictions 127.0.0.1:(\d+)", "".join(program.lines))
    assert port is not None
    said = refused("inferencer", "--model", f"m={store}", "--port", port[1], "--rest-port", "0", "--control-port", "0")
    assert "is taken" in said


@pytest.mark.slow
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
    found = second.http("POST", "/v1/models/m:predict", {"inputs": [[1.0, 1.0]]})
    assert found[0] == 200
    assert second.predict(of_witness(), timeout=LONG).model_spec.version.value == 1
    [status] = second.sync.GetStatus(pb.GetStatusRequest(model="m"), timeout=LONG).models
    assert (status.pinned, status.published.number) == (1, 2)
    assert second.http("GET", "/healthz")[0] == 503
    assert second.end(signal.SIGTERM) == 0
    second.close()


def serves(program: Process, model: str) -> bool:
    return bool(program.health.Check(health_pb2.HealthCheckRequest(service=model), timeout=LONG).status == SERVING)
