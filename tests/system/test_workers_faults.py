"""What is done to a server of several processes from outside: some killed or stopped, and machines that lack things."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from tensorflow_serving.apis import prediction_service_pb2_grpc

from paramsync.v1 import sync_pb2 as pb
from tests.conformance.kinds import SavedModels
from tests.hostile.campaigns.ask import family
from tests.support.inferencers import LONG, Process, of_witness
from tests.support.programs import ROOT, eventually, refused
from tests.support.published import Doubled, Publisher

pytestmark = pytest.mark.slow
WORKERS = 2
LOCAL = (("grpc.use_local_subchannel_pool", 1),)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path / "m")
    publisher.publish(1)
    yield publisher
    publisher.close()


@pytest.fixture
def program(publisher: Publisher) -> Iterator[Process]:
    program = started(publisher)
    yield program
    program.close()


def started(publisher: Publisher, *options: str) -> Process:
    program = Process("--model", f"m={publisher.path}", "--workers", str(WORKERS), *options)
    program.connect()
    try:
        synced(program)
    except BaseException:
        program.close()
        raise
    return program


def synced(program: Process, version: int | None = None) -> int:
    request = pb.SyncRequest() if version is None else pb.SyncRequest(version=version)
    *_, last = program.sync.Sync(request, timeout=LONG)
    return int(last.status.serving.number)


def answered(program: Process) -> int:
    answer = program.predict(of_witness(), timeout=LONG, wait_for_ready=True)
    return int(answer.model_spec.version.value)


def is_alive(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def workers_up(program: Process) -> float:
    try:
        return program.metrics()["paramsync_worker_up"]
    except OSError:  # it asked a worker that was just killed
        return 0.0


class Killer:
    """Kills each process that is neither a worker nor the template, as soon as it is there, until told to stop."""

    def __init__(self, program: Process, most: int) -> None:
        self.killed: list[int] = []
        self._program = program
        self._spared = set(family(program.process.pid))
        self._most = most
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.005) and len(self.killed) < self._most:
            for pid in set(family(self._program.process.pid)) - self._spared - {*self.killed}:
                os.kill(pid, signal.SIGKILL)
                self.killed.append(pid)


def test_a_trial_that_is_killed_from_outside_is_no_fault_of_the_version(program: Process, publisher: Publisher) -> None:
    killer = Killer(program, most=2)
    publisher.publish(2, kind=Doubled)
    eventually(lambda: len(killer.killed) == 2, lambda: "two trials to be killed")
    killer.end()
    eventually(lambda: answered(program) == 2, lambda: f"version 2 to serve: {''.join(program.lines)}")
    [status] = program.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).models
    assert list(status.quarantined) == []


def test_an_importer_that_is_killed_in_the_middle_is_no_fault_of_the_version(tmp_path: Path) -> None:
    kind = SavedModels(tmp_path / "m")
    kind.publish(1)
    program = Process("--model", f"m={kind.path}", "--workers", "2")
    program.connect()
    assert synced(program) == 1
    killer = Killer(program, most=1)
    kind.publish(2)
    eventually(lambda: len(killer.killed) == 1, lambda: "an importer to be killed")
    killer.end()
    eventually(lambda: status_of(program).serving.number == 2, lambda: f"{status_of(program)}")
    assert list(status_of(program).quarantined) == []
    program.close()
    kind.close()


def status_of(program: Process) -> pb.ModelStatus:
    found: pb.ModelStatus = program.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).models[0]
    return found


@pytest.mark.parametrize("without_template", [False, True])
def test_when_the_supervisor_is_killed_all_ends_and_the_next_serves_the_newest_good_version(
    publisher: Publisher, without_template: bool
) -> None:
    program = started(publisher)
    below = family(program.process.pid)
    assert len(below) == WORKERS + 1
    stopped = program.workers[0]
    if without_template:
        os.kill(program.template, signal.SIGKILL)
    os.kill(stopped, signal.SIGSTOP)  # which hears of nothing
    ports = [name.rpartition(":")[2] for name in (program.address, program.http_address, program.control_address)]
    os.kill(program.process.pid, signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, below)), lambda: f"{below} to end")
    program.close()
    publisher.publish(2)
    publisher.publish_bad(3)
    options = [word for pair in zip(("--port", "--rest-port", "--control-port"), ports, strict=True) for word in pair]
    command = [sys.executable, "-m", "inferencer", "--model", f"m={publisher.path}", *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as again:
        with grpc.insecure_channel(program.address, LOCAL) as channel:
            predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
            answer = eventually(lambda: served(predict), lambda: "the next server to answer")
        assert answer == 2
        again.send_signal(signal.SIGTERM)
        assert again.wait(LONG) == 0


def served(predict: grpc.UnaryUnaryMultiCallable) -> int | None:  # type: ignore[type-arg]
    try:
        return int(predict(of_witness(), timeout=LONG, wait_for_ready=True).model_spec.version.value)
    except grpc.RpcError:
        return None


def test_the_template_that_is_killed_takes_nobody_with_it_and_workers_are_replaced_all_the_same(
    program: Process, publisher: Publisher
) -> None:
    [template] = {*family(program.process.pid)} - {*program.workers}
    workers = program.workers
    os.kill(template, signal.SIGKILL)
    publisher.publish(2)
    assert synced(program) == 2  # a version needs no new process
    assert [is_alive(pid) for pid in workers] == [True] * WORKERS
    os.kill(workers[0], signal.SIGKILL)
    eventually(lambda: workers_up(program) == WORKERS, lambda: "it to be replaced")
    assert answered(program) == 2
    assert program.end(signal.SIGTERM) == 0, "".join(program.lines)
    eventually(lambda: not any(map(is_alive, workers)), lambda: f"{workers} to end")


def test_the_end_of_a_server_is_clean_while_a_worker_starts(program: Process) -> None:
    before = program.workers
    os.kill(before[0], signal.SIGKILL)
    eventually(lambda: {*program.workers} - {*before}, lambda: "another one")
    assert program.end(signal.SIGTERM) == 0, "".join(program.lines)
    assert "Traceback" not in "".join(program.lines)


def test_a_worker_that_is_stopped_while_it_starts_keeps_the_others_from_nothing(
    program: Process, publisher: Publisher
) -> None:
    before = program.workers
    os.kill(before[0], signal.SIGKILL)
    started = eventually(lambda: {*program.workers} - {*before}, lambda: "another one")
    [stopped] = started
    os.kill(stopped, signal.SIGSTOP)
    for number in (2, 3, 4):
        publisher.publish(number)
        began = time.monotonic()
        assert synced(program) == number
        assert time.monotonic() - began < LONG / 2  # for which a start is waited for
    with suppress(ProcessLookupError):  # it may have been ended, where it was stopped when it had all
        os.kill(stopped, signal.SIGCONT)
    eventually(lambda: workers_up(program) == WORKERS, lambda: "both to answer")
    assert answered(program) == 4


def test_what_operators_choose_is_so_for_all_connections_once_they_are_told(
    program: Process, publisher: Publisher
) -> None:
    publisher.publish(2)
    synced(program)
    channels = [grpc.insecure_channel(program.address, LOCAL) for _ in range(8)]
    calls = [prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict for channel in channels]
    seen: list[int] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            seen.extend(int(call(of_witness(), timeout=LONG).model_spec.version.value) for call in calls)

    def all_answer(label: str = "") -> set[int]:
        request = of_witness()
        request.model_spec.version_label = label
        return {int(call(request, timeout=LONG).model_spec.version.value) for call in calls}

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(10):
        program.sync.Pin(pb.PinRequest(version=1), timeout=LONG)
        assert all_answer() == {1}
        program.sync.Label(pb.LabelRequest(label="best", version=2), timeout=LONG)
        assert all_answer("best") == {2}
        program.sync.Unpin(pb.UnpinRequest(), timeout=LONG)
        assert all_answer() == {2}
        program.sync.Label(pb.LabelRequest(label="best", version=1), timeout=LONG)
        assert all_answer("best") == {1}
    program.sync.Rollback(pb.RollbackRequest(), timeout=LONG)
    assert all_answer() == {1}
    over.set()
    asking.join()
    changes = sum(one != other for one, other in itertools.pairwise(seen))
    assert changes <= 2 * 10 + 1  # one client, asking one connection after the other, sees each change once
    for channel in channels:
        channel.close()


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


def test_few_descriptors_serve_as_many_models_as_they_are_enough_for(tmp_path: Path) -> None:
    count = 30
    publisher = Publisher(tmp_path / "m00")
    publisher.publish(1)
    publisher.close()
    for number in range(1, count):
        shutil.copytree(tmp_path / "m00", tmp_path / f"m{number:02}")
    models = [word for number in range(count) for word in ("--model", f"m{number:02}={tmp_path / f'm{number:02}'}")]
    program = Process(*models, "--workers", "2", descriptors=256)
    program.connect()
    for number in range(count):
        request = of_witness()
        request.model_spec.name = f"m{number:02}"
        list(program.sync.Sync(pb.SyncRequest(model=request.model_spec.name), timeout=LONG))
        assert program.predict(request, timeout=LONG).model_spec.version.value == 1
    assert program.end(signal.SIGTERM) == 0
    program.close()


def test_without_shared_memory_of_the_system_it_serves_all_the_same(publisher: Publisher) -> None:
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=0,mode=000 none /dev/shm && exec "$0" "$@"']
    if subprocess.run([*hidden, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody hide /dev/shm")
    program = Process("--model", f"m={publisher.path}", "--workers", "2", before=hidden)
    program.connect()
    publisher.publish(2, kind=Doubled)
    assert synced(program) == 2
    assert answered(program) == 2
    program.close()


@pytest.mark.parametrize("option", ["--port", "--rest-port", "--control-port"])
def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"--port": "0", "--rest-port": "0", "--control-port": "0", option: str(taken.getsockname()[1])}
        said = refused("inferencer", "--model", f"m={tmp_path}", *(word for pair in ports.items() for word in pair))
    assert option in said
