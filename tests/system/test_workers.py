"""Workers: they change versions at one instant, may end at any moment, and never take the supervisor with them."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from paramsync.v1 import sync_pb2 as pb
from tests.hostile.campaigns.ask import family
from tests.support.callers import Caller
from tests.support.inferencers import LONG, Predict, Process, of_witness
from tests.support.programs import ROOT, eventually
from tests.support.published import Publisher, proven

pytestmark = pytest.mark.slow
WORKERS = 2
LOCAL = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 2000),  # so long is a connection tried: 20 s by default
    ("grpc.max_reconnect_backoff_ms", 1000),  # and so long waited after one that failed: up to two minutes
)


class Served(Publisher):
    """A store, and the program that serves it with two workers. Versions count up from 1."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.number = 0
        self.program = Process.of(path, workers=WORKERS)
        self.program.connect()
        self.next()
        self.sync()

    def next(self, **more: Any) -> int:
        self.number += 1
        self.publish(self.number, **more)
        return self.number

    def sync(self, version: int | None = None) -> int:
        request = pb.SyncRequest() if version is None else pb.SyncRequest(version=version)
        *_, last = self.program.sync.Sync(request, timeout=LONG)
        return int(last.status.serving.number)

    def predict(self) -> int:
        answer = self.program.predict(of_witness(), timeout=LONG, wait_for_ready=True)
        return int(answer.model_spec.version.value)

    def workers_up(self) -> bool:
        with suppress(OSError):  # it asked a worker that was just killed
            return self.program.metrics()["paramsync_worker_up"] == WORKERS
        return False

    def close(self) -> None:
        self.program.close()
        super().close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("workers") / "m")
    yield served
    served.close()


@pytest.fixture
def served(shared: Served) -> Served:
    """The one of all tests that leave it with two workers, and the newest version serving."""
    eventually(shared.workers_up, lambda: f"two workers: {''.join(shared.program.lines)}")
    return shared


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """One for a test that ends it."""
    served = Served(tmp_path / "m")
    yield served
    served.close()


@contextmanager
def connections(address: str, count: int = 8) -> Iterator[list[Predict]]:
    """Each comes to any of the workers."""
    with ExitStack() as stack:
        channels = [stack.enter_context(grpc.insecure_channel(address, LOCAL)) for _ in range(count)]
        yield [prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict for channel in channels]


def version_of(predict: Predict, request: predict_pb2.PredictRequest | None = None) -> int:
    answer = predict(request or of_witness(), timeout=LONG, wait_for_ready=True)
    return int(answer.model_spec.version.value)


def is_alive(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


# Versions -------------------------------------------------------------------------------------------------------------


def answers(address: str, failed: list[grpc.StatusCode]) -> Iterator[int]:
    """The versions that answer on one connection, which is made again when its worker ends."""
    with grpc.insecure_channel(address, LOCAL) as channel:
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        while True:
            try:
                answer = predict(of_witness(), timeout=LONG, wait_for_ready=True)
            except grpc.RpcError as error:
                failed.append(error.code())
                continue
            number = int(answer.model_spec.version.value)
            assert proven(list(answer.outputs["seen"].float_val), number)
            yield number


@pytest.mark.promise
def test_workers_that_are_killed_at_random_are_replaced_and_lose_what_was_in_flight_on_them(served: Served) -> None:
    failed: list[grpc.StatusCode] = []
    callers = [Caller(lambda: answers(served.program.address, failed)) for _ in range(4)]
    chosen = random.Random(7)
    killed: list[int] = []

    def living() -> list[int]:
        workers = [worker for worker in served.program.workers if worker not in killed]  # one may stay for a moment
        return workers if len(workers) == WORKERS else []

    for _ in range(6):
        served.next()
        killed.append(chosen.choice(eventually(living, lambda: "all workers to be there")))
        wanted = [(caller, caller.answered + 20) for caller in callers]
        os.kill(killed[-1], signal.SIGKILL)
        for caller, count in wanted:
            eventually(lambda caller=caller, count=count: caller.answered > count, lambda: "answers")  # type: ignore[misc]
    for caller in callers:
        caller.end()
    assert [caller.wrong for caller in callers] == [[]] * len(callers)
    assert set(failed) <= {grpc.StatusCode.UNAVAILABLE}, "".join(served.program.lines)
    assert served.sync() == served.number
    assert served.predict() == served.number


@pytest.mark.promise
def test_what_operators_choose_is_so_for_all_connections_once_they_are_told(served: Served) -> None:
    old, new = served.number, served.next()
    served.sync()
    sync, seen, over = served.program.sync, list[int](), threading.Event()
    with connections(served.program.address) as calls:

        def ask() -> None:
            while not over.is_set():
                seen.extend(version_of(call) for call in calls)

        def all_answer(label: str = "") -> set[int]:
            request = of_witness()
            request.model_spec.version_label = label
            return {version_of(call, request) for call in calls}

        asking = threading.Thread(target=ask)
        asking.start()
        for _ in range(10):
            sync.Pin(pb.PinRequest(version=old), timeout=LONG)
            assert all_answer() == {old}
            sync.Label(pb.LabelRequest(label="best", version=new), timeout=LONG)
            assert all_answer("best") == {new}
            sync.Unpin(pb.UnpinRequest(), timeout=LONG)
            assert all_answer() == {new}
            sync.Label(pb.LabelRequest(label="best", version=old), timeout=LONG)
            assert all_answer("best") == {old}
        sync.Rollback(pb.RollbackRequest(), timeout=LONG)
        assert all_answer() == {old}
        over.set()
        asking.join()
        sync.Unpin(pb.UnpinRequest(), timeout=LONG)
    changes = sum(version != following for version, following in itertools.pairwise(seen))
    assert changes <= 2 * 10 + 1  # one client, asking one connection after the other, sees each change once


# Processes ------------------------------------------------------------------------------------------------------------


def test_the_template_that_is_killed_takes_nobody_with_it_and_workers_are_replaced_all_the_same(own: Served) -> None:
    [template] = {*family(own.program.process.pid)} - {*own.program.workers}
    workers = own.program.workers
    os.kill(template, signal.SIGKILL)
    assert own.sync(own.next()) == 2  # a version needs no new process
    assert [is_alive(pid) for pid in workers] == [True] * WORKERS
    os.kill(workers[0], signal.SIGKILL)
    eventually(own.workers_up, lambda: "it to be replaced")
    assert own.predict() == 2
    assert own.program.end(signal.SIGTERM) == 0, "".join(own.program.lines)
    eventually(lambda: not any(map(is_alive, workers)), lambda: f"{workers} to end")


@pytest.mark.parametrize("without_template", [False, True])
def test_when_the_supervisor_is_killed_all_ends_and_the_next_serves_the_newest_good_version(
    own: Served, without_template: bool
) -> None:
    program = own.program
    assert "tensorflow" not in Path(f"/proc/{program.process.pid}/maps").read_text()
    below = family(program.process.pid)
    assert len(below) == WORKERS + 1
    stopped = program.workers[0]
    if without_template:
        os.kill(program.template, signal.SIGKILL)
    os.kill(stopped, signal.SIGSTOP)  # which hears of nothing
    os.kill(program.process.pid, signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, below)), lambda: f"{below} to end")
    own.next()
    own.publish_bad(3)
    ports = [name.rpartition(":")[2] for name in (program.address, program.http_address, program.control_address)]
    options = [word for pair in zip(("--port", "--rest-port", "--control-port"), ports, strict=True) for word in pair]
    command = [sys.executable, "-m", "inferencer", "--model", f"m={own.path}", *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as again, connections(program.address, 1) as [predict]:

        def answered() -> int:
            with suppress(grpc.RpcError):
                return version_of(predict)
            return 0

        assert eventually(answered, lambda: "the next server to answer") == 2
        again.send_signal(signal.SIGTERM)
        assert again.wait(LONG) == 0


# Machines that lack things --------------------------------------------------------------------------------------------


def test_fewer_descriptors_than_models_need_are_one_clear_line(tmp_path: Path) -> None:
    models = [word for number in range(100) for word in ("--model", f"m{number}={tmp_path}")]
    ports = ["--port", "0", "--control-port", "0", "--workers", "2"]
    command = ["sh", "-c", 'ulimit -n 256; exec "$0" "$@"', sys.executable, "-m", "inferencer", *models, *ports]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONG)
    assert done.returncode == 2
    assert done.stderr == (
        "paramsync serve: 100 models and 2 workers need at least 378 file descriptors, and this process may have 256:"
        " raise the limit (ulimit -n), or serve fewer models\n"
    )
