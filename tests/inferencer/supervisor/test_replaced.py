"""Workers that others take the place of, while callers go on by every way to call, and versions come."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorflow_serving.apis import prediction_service_pb2_grpc

from paramsync.cli.__main__ import main
from paramsync.errors import ParamsyncError, SyncError
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb
from tests.support.callers import Caller
from tests.support.programs import eventually
from tests.support.published import Publisher, proven
from tests.support.running import LONG, SERVING, Running, request, seen, synced

pytestmark = pytest.mark.slow
WORKERS = 2
ALONE = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
LARGE = ("grpc.per_rpc_retry_buffer_size", 4 << 20)  # otherwise gRPC repeats no call of more than 256 KB
BODY = json.dumps({"inputs": [[1.0, 1.0]]})


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path / "m")
    publisher.publish(1)
    yield publisher
    publisher.close()


@pytest.fixture
def running(publisher: Publisher, tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "m", workers=WORKERS)
    synced(running)
    yield running
    running.close()


def version_of(answer: Any) -> int:
    number = int(answer.model_spec.version.value)
    assert proven(seen(answer), number)
    return number


def by_one_connection(port: int) -> Iterator[int]:
    with grpc.insecure_channel(f"127.0.0.1:{port}", ALONE) as channel:
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        while True:
            yield version_of(predict(request(), timeout=LONG))


def by_large_answers(port: int) -> Iterator[int]:
    rows = np.ones([1 << 17, 2], np.float32)  # 1 MB there, half of it back
    with grpc.insecure_channel(f"127.0.0.1:{port}", [*ALONE, LARGE]) as channel:
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        while True:
            answer = predict(request(x=rows), timeout=LONG)
            assert len(answer.outputs["total"].float_val) == len(rows)
            yield version_of(answer)


def by_new_connections(port: int) -> Iterator[int]:
    while True:
        with grpc.insecure_channel(f"127.0.0.1:{port}", ALONE) as channel:
            yield version_of(
                prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request(), timeout=LONG)
            )


def by_http(port: int, *, kept: bool) -> Iterator[int]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)) as connection:
        while True:
            connection.request("POST", "/v1/models/m:predict", BODY)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            if not kept:
                connection.close()
            yield int(answer.headers["Paramsync-Version"])


def pids(running: Running) -> list[int]:
    workers = running.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).workers
    assert [worker.number for worker in workers] == list(range(WORKERS))
    assert {worker.state for worker in workers} == {pb.WorkerStatus.ANSWERING}
    return [worker.pid for worker in workers]


def counted(running: Running) -> float:
    families = text_string_to_metric_families(running.server._text().decode())
    samples = [sample for family in families for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == "paramsync_requests_total")


def replaced_twice(running: Running) -> tuple[list[list[int]], list[float]]:
    """The processes before, between and after, and how many requests were counted now and then."""
    generations, counts = [pids(running)], [counted(running)]
    with Inferencer(f"127.0.0.1:{running.control_port}") as operator:
        for _ in range(2):
            replaced: list[tuple[int, int, int]] = []
            for each in operator.replace_workers():
                if not replaced:
                    with pytest.raises(SyncError, match="workers are being replaced already"):
                        list(operator.replace_workers())
                replaced.append((each.number, each.before, each.after))
                counts.append(counted(running))
            generations.append(pids(running))
            assert replaced == [(number, *both) for number, both in enumerate(zip(*generations[-2:], strict=True))]
    return generations, counts


@pytest.mark.promise
def test_all_workers_are_replaced_twice_and_no_call_fails_nor_sees_a_version_go_back(
    running: Running, publisher: Publisher
) -> None:
    grpc_port, http_port = running.port, running.rest_port
    callers = [
        Caller(lambda: by_one_connection(grpc_port)),
        Caller(lambda: by_one_connection(grpc_port)),
        Caller(lambda: by_large_answers(grpc_port)),
        Caller(lambda: by_new_connections(grpc_port)),
        Caller(lambda: by_http(http_port, kept=True)),
        Caller(lambda: by_http(http_port, kept=False)),
    ]
    numbers, over = itertools.count(2), threading.Event()

    def publish() -> None:
        while not over.wait(0.2):
            publisher.publish(next(numbers))

    publishing = threading.Thread(target=publish)
    publishing.start()
    with contextlib.ExitStack() as ends:
        for caller in callers:
            ends.callback(caller.end)
        ends.callback(publishing.join, LONG)
        ends.callback(over.set)
        generations, counts = replaced_twice(running)
        eventually(
            lambda: all(caller.answered > 20 or caller.wrong for caller in callers),
            lambda: f"answers: {[caller.answered for caller in callers]}",
        )
    assert [caller.wrong for caller in callers] == [[]] * len(callers)
    assert len({*itertools.chain(*generations)}) == 3 * WORKERS
    assert counts == sorted(counts)
    answered = sum(caller.answered for caller in callers)
    eventually(lambda: counted(running) == answered, lambda: f"{answered} to be counted: {counted(running)}")
    eventually(lambda: sum(running.server._fleet.workers._words.taken) == 0, lambda: "nothing to be counted as taken")
    assert {status.restarts for status in running.server._fleet.workers.statuses()} == {0}
    assert running.health() == SERVING


def test_one_whose_successor_does_not_come_up_goes_on_and_the_operator_is_told(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    before, fleet = pids(running), running.server._fleet.workers
    arguments, fleet._arguments = fleet._arguments, ("no settings",)
    with Inferencer(f"127.0.0.1:{running.control_port}") as operator:
        with pytest.raises(SyncError, match="worker 0 is not replaced, and goes on: its successor does not start"):
            list(operator.replace_workers())
        assert pids(running) == before
    assert main(["workers", "replace", "--server", operator.address]) == 1
    assert "worker 0 is not replaced, and goes on" in capsys.readouterr().err
    fleet._arguments = arguments
    assert main(["workers", "replace", "--server", operator.address, "--json"]) == 0
    assert [json.loads(line)["before"] for line in capsys.readouterr().out.splitlines()] == before


def is_starting(running: Running) -> bool:
    """Whether a worker is."""
    workers = running.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).workers
    return any(worker.state == pb.WorkerStatus.STARTING for worker in workers)


def kill_once_another_starts(running: Running, victim: int) -> None:
    eventually(lambda: is_starting(running), lambda: "a successor")
    os.kill(victim, signal.SIGKILL)


def test_one_that_is_killed_while_another_starts_in_its_place_has_that_one_as_its_successor(running: Running) -> None:
    [victim, other] = pids(running)
    with Inferencer(f"127.0.0.1:{running.control_port}") as operator:
        killing = threading.Thread(target=kill_once_another_starts, args=(running, victim))
        killing.start()
        became = list(operator.replace_workers())
    killing.join(LONG)
    assert [each.before for each in became] == [victim, other]
    assert pids(running) == [each.after for each in became]
    for _ in range(8):
        with grpc.insecure_channel(f"127.0.0.1:{running.port}", ALONE) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            assert version_of(stub.Predict(request(), timeout=LONG)) == 1


def test_a_server_that_is_drained_while_workers_are_replaced_ends(running: Running) -> None:
    def replace() -> None:
        address = f"127.0.0.1:{running.control_port}"
        with Inferencer(address) as operator, contextlib.suppress(ParamsyncError):  # the server goes away
            list(operator.replace_workers())

    replacing = threading.Thread(target=replace)
    replacing.start()
    eventually(lambda: is_starting(running), lambda: "a successor")
    running.drain()
    replacing.join(LONG)
    assert not replacing.is_alive()
