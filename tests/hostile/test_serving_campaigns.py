"""A server under fire: versions that come all the time, and workers that are killed at random, for as long as it takes.

Each has a short form here and its whole length in `make campaign`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paramsync.v1 import sync_pb2 as pb
from tests.hostile.campaigns.ask import WORDS
from tests.support.inferencers import LONG, Process, of_witness
from tests.support.programs import ROOT, eventually
from tests.support.published import Publisher

pytestmark = pytest.mark.slow
WORKERS = 2
CLIENTS = 3
LEAST_KILLED = 3
CONNECTIONS = 16  # of each, which the kernel spreads over the workers


class Clients:
    """Processes that ask, see tests.hostile.campaigns.ask."""

    def __init__(self, program: Process, folder: Path) -> None:
        self._words = folder / "words"
        self._words.write_bytes(bytes(8 * WORDS))
        with self._words.open("r+b") as file:
            file.truncate(8 * WORDS)
        supervisor = str(program.process.pid)
        self._processes = [
            self._start("http", program.http_address, supervisor, str(place), str(CONNECTIONS))
            for place in range(1, CLIENTS)
        ]
        request = of_witness().SerializeToString().hex()
        self._processes.append(self._start("grpc", program.address, supervisor, str(CLIENTS), "8", request))

    def _start(self, kind: str, address: str, supervisor: str, place: str, *more: str) -> subprocess.Popen[str]:
        module = "tests.hostile.campaigns.ask"
        command = [sys.executable, "-m", module, kind, address, supervisor, str(self._words), place, *more]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    @property
    def answered(self) -> int:
        words = memoryview(self._words.read_bytes()).cast("Q")
        return sum(words[1:])

    def end(self) -> list[dict[str, Any]]:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        said = [process.communicate(timeout=LONG)[0] for process in self._processes]
        assert [process.returncode for process in self._processes] == [0] * len(said)
        return [json.loads(text) for text in said]


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path / "m")
    yield publisher
    publisher.close()


@contextmanager
def started(publisher: Publisher) -> Iterator[Process]:
    publisher.publish(1)
    program = Process("--model", f"m={publisher.path}", "--rest-port", "0", "--workers", str(WORKERS))
    program.connect()
    try:
        synced(program)
        yield program
    finally:
        program.close()


def synced(program: Process) -> int:
    *_, last = program.sync.Sync(pb.SyncRequest(), timeout=LONG)
    return int(last.status.serving.number)


def answering(program: Process) -> bool:
    """Whether all workers are."""
    workers = program.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).workers
    return [worker.state for worker in workers] == [pb.WorkerStatus.ANSWERING] * WORKERS


def total(seen: Sequence[dict[str, Any]], what: str) -> int:
    return sum(client[what] for client in seen)


@pytest.mark.promise
def test_no_client_ever_sees_an_older_version_after_a_newer_one_whichever_worker_answers(
    publisher: Publisher, tmp_path: Path, whole: bool
) -> None:
    swaps, requests = (1000, 1_000_000) if whole else (25, 10_000)
    began = time.monotonic()
    with started(publisher) as program:
        clients = Clients(program, tmp_path)
        for number in range(2, swaps + 2):
            publisher.publish(number)
            assert synced(program) == number
            eventually(
                lambda number=number: clients.answered >= (number - 1) * requests // swaps,  # type: ignore[misc]
                lambda: f"answers, of which there are {clients.answered}",
            )
        seen = clients.end()
        [status] = program.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).models
    assert status.swaps >= swaps
    assert total(seen, "answered") >= requests
    assert [total(seen, what) for what in ("backwards", "mixed")] == [0, 0]
    assert [(client["failed"], client["refused"], client["codes"]) for client in seen] == [({}, 0, {})] * CLIENTS
    assert all(client["newest"] == swaps + 1 for client in seen)
    workers = {worker for client in seen[:-1] for worker in client["connections"]}
    assert len(workers) == WORKERS
    sys.stdout.write(
        f"{status.swaps} swaps, {total(seen, 'answered')} answers in {time.monotonic() - began:.0f} s, "
        f"{WORKERS} workers; backwards 0, mixed 0, failed 0\n"
    )


def test_only_what_is_in_flight_on_a_worker_fails_when_it_is_killed(
    publisher: Publisher, tmp_path: Path, whole: bool
) -> None:
    seconds = 60 if whole else 5
    choose = random.Random(11)
    killed: list[int] = []
    with started(publisher) as program:
        clients = Clients(program, tmp_path)
        eventually(lambda: clients.answered > 1000, lambda: "answers")
        number, end = 1, time.monotonic() + seconds

        def living() -> list[int]:
            found = [worker for worker in program.workers if worker not in killed]  # one may be there for a while yet
            return found if len(found) == WORKERS else []

        while time.monotonic() < end or len(killed) < LEAST_KILLED:
            number += 1
            publisher.publish(number)
            workers = living() if time.monotonic() < end else eventually(living, lambda: "another worker")
            if workers:
                killed.append(choose.choice(workers))
                os.kill(killed[-1], signal.SIGKILL)
            time.sleep(choose.uniform(0.1, 0.6))
        assert synced(program) == number
        eventually(lambda: answering(program), lambda: "all workers to answer")
        seen = clients.end()
        metrics = program.metrics()
    *by_http, by_grpc = seen
    kills = len(killed)
    assert [total(seen, what) for what in ("backwards", "mixed")] == [0, 0]
    assert [client["codes"] for client in by_http] == [{}] * len(by_http)
    assert total(by_http, "refused_by_listeners") == 0
    for client in by_http:
        failed = {int(worker): count for worker, count in client["failed"].items()}
        assert failed.keys() <= {0, *killed}
        assert all(count <= CONNECTIONS for worker, count in failed.items() if worker), failed
        # made again at once, a connection may wait at a worker whose sockets the kernel is still closing: twice a kill
        assert sum(failed.values()) <= 2 * CONNECTIONS * kills, failed
    assert set(by_grpc["codes"]) <= {"UNAVAILABLE"}
    # it asks one after the other, but may do so on the next channel before that one hears of the same end: once a kill
    assert all(count <= kills for count in by_grpc["calls"].values()), by_grpc["calls"]
    assert metrics["paramsync_worker_restarts_total"] == kills
    in_flight = sum(count for client in by_http for worker, count in client["failed"].items() if worker != "0")
    waiting = sum(client["failed"].get("0", 0) for client in by_http)
    sys.stdout.write(
        f"{kills} workers killed in {seconds} s of {number} versions, {total(seen, 'answered')} answers; failed: "
        f"{in_flight} in flight on a worker that was killed, {waiting} connections that no worker had answered yet, by "
        f"gRPC {sum(by_grpc['calls'].values())}, all UNAVAILABLE; {total(by_http, 'refused')} refused while no worker "
        "listened; backwards 0, mixed 0\n"
    )
