"""The program's end: on no port a request is lost, and nothing holds it up for ever."""

from __future__ import annotations

import http.client
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

from paramsync.v1 import sync_pb2 as pb
from tests.support.inferencers import LONG, Predict, Process, of_gated, of_witness
from tests.support.programs import eventually
from tests.support.published import Gated, Publisher

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "m"


@pytest.fixture
def program(store: Path) -> Iterator[Process]:
    program = Process.of(store, workers=2)
    yield program
    program.close()


@pytest.mark.slow
def test_a_request_in_flight_at_sigterm_is_answered_and_a_second_signal_changes_nothing(
    program: Process, publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(4, kind=Gated)
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    watched = program.health.Watch(health_pb2.HealthCheckRequest(), timeout=LONG)
    assert next(watched).status == SERVING
    watching = program.sync.Watch(pb.WatchRequest(), timeout=LONG)  # a stream that nobody ends
    waiting = program.sync.Sync(pb.SyncRequest(version=99), timeout=LONG)
    assert next(waiting).phase == pb.SyncProgress.LOOKING

    called, gate = tmp_path / "called", tmp_path / "gate"
    answer = program.predict.future(of_gated(called, gate), timeout=LONG)
    eventually(called.exists, lambda: "the request to be computed")
    program.process.send_signal(signal.SIGTERM)
    assert next(watched).status == NOT_SERVING
    assert not answer.done()
    with pytest.raises(grpc.RpcError, match="stopping"):
        next(waiting)
    program.process.send_signal(signal.SIGTERM)
    program.process.send_signal(signal.SIGINT)
    gate.touch()
    assert list(answer.result().outputs["seen"].float_val) == [4.0] * 6
    assert program.ended() == 0
    assert list(watching) == []
    text = "".join(program.lines)
    assert "Traceback" not in text
    assert "inferencer stopped" in text


def connected(program: Process, count: int) -> list[Predict]:
    """As many clients of one process, each with a connection of its own that stands."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.insecure_channel(program.address, options) for _ in range(count)]
    for one in channels:
        grpc.channel_ready_future(one).result(LONG)
    return [prediction_service_pb2_grpc.PredictionServiceStub(one).Predict for one in channels]


@pytest.mark.slow
def test_no_call_sent_before_sigterm_is_lost(program: Process, publisher: Publisher) -> None:
    publisher.publish(4)
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    clients = connected(program, 8)
    answers = [clients[at % 8].future(of_witness(), timeout=LONG) for at in range(400)]
    program.process.send_signal(signal.SIGTERM)
    codes = Counter(one.code() for one in answers)
    assert set(codes) <= {OK, UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes  # which is: too many at once
    assert codes[OK] >= 256, codes
    assert program.ended() == 0


@pytest.mark.slow
def test_clients_that_call_again_and_again_are_refused_at_the_end_and_lose_no_call(
    program: Process, publisher: Publisher
) -> None:
    publisher.publish(4)
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    codes: list[list[grpc.StatusCode]] = [[] for _ in range(16)]

    def call(client: Predict, mine: list[grpc.StatusCode]) -> None:
        while mine.count(OK) == len(mine):
            mine.append(client.future(of_witness(), timeout=LONG).code())

    threads = [
        threading.Thread(target=call, args=both) for both in zip(connected(program, len(codes)), codes, strict=True)
    ]
    for one in threads:
        one.start()
    eventually(lambda: all(len(mine) > 10 for mine in codes), lambda: "some answers for each")
    program.process.send_signal(signal.SIGTERM)
    for one in threads:
        one.join(LONG)
    assert [mine[-1] for mine in codes] == [UNAVAILABLE] * len(codes)
    assert program.ended() == 0


@pytest.mark.slow
def test_a_computation_that_never_ends_is_given_up_after_the_grace(
    program: Process, publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(4, kind=Gated)
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    called = tmp_path / "called"
    answer = program.predict.future(of_gated(called, tmp_path / "never"), timeout=LONG)
    eventually(called.exists, lambda: "the request to be computed")
    assert program.end(signal.SIGTERM) == 0
    assert answer.code() is not OK
    text = "".join(program.lines)
    assert "Traceback" not in text
    assert "are given up: 1\n" in text


@pytest.mark.slow
def test_a_request_by_http_in_flight_at_sigterm_is_answered_as_the_last_of_its_connection(
    program: Process, publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(4, kind=Gated)
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    assert program.http("GET", "/healthz") == (200, {"status": "serving"}, True)
    watched = program.health.Watch(health_pb2.HealthCheckRequest(), timeout=LONG)
    assert next(watched).status == SERVING
    called, gate = tmp_path / "called", tmp_path / "gate"
    inputs = {"x": [[1.0, 1.0]], "called": str(called), "gate": str(gate)}
    answers: list[tuple[int, Any, bool]] = []
    thread = threading.Thread(
        target=lambda: answers.append(program.http("POST", "/v1/models/m:predict", {"inputs": inputs}))
    )
    thread.start()
    eventually(called.exists, lambda: "the request to be computed")
    program.process.send_signal(signal.SIGTERM)
    assert next(watched).status == NOT_SERVING
    assert program.http("GET", "/healthz") == (503, {"error": "the server is stopping"}, False)
    gate.touch()
    thread.join(LONG)
    [(status, body, stays)] = answers
    assert (status, body["outputs"]["seen"], stays) == (200, [4.0] * 6, False)
    assert program.ended() == 0


@pytest.mark.slow
def test_clients_that_call_by_http_again_and_again_are_refused_at_the_end_and_lose_no_request(
    program: Process, publisher: Publisher
) -> None:
    publisher.publish(4)
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    answers: list[list[int]] = [[] for _ in range(8)]

    def call(mine: list[int]) -> None:
        connection = http.client.HTTPConnection(program.http_address, timeout=LONG)
        while mine.count(200) == len(mine):
            connection.request("POST", "/v1/models/m:predict", '{"inputs": [[1.0, 1.0]]}')
            answer = connection.getresponse()
            answer.read()
            mine.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=call, args=(mine,)) for mine in answers]
    for one in threads:
        one.start()
    eventually(lambda: all(len(mine) > 10 for mine in answers), lambda: "some answers for each")
    program.process.send_signal(signal.SIGTERM)
    for one in threads:
        one.join(LONG)
    assert [mine[-1] for mine in answers] == [503] * len(answers)
    assert program.ended() == 0
