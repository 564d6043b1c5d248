"""Workers that do not answer: everybody else goes on. Processes forked from the template end when they are killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import grpc
import pytest
from tensorflow_serving.apis import prediction_service_pb2_grpc

from inferencer.processes import shared_words
from inferencer.processes.channel import Channel, pair
from inferencer.processes.shared_words import SharedWords
from inferencer.serving.worker_status import WorkerState
from inferencer.settings.settings import Settings
from inferencer.supervisor.child import ChildProcess
from inferencer.supervisor.listeners import Listeners
from inferencer.supervisor.template import Template
from inferencer.supervisor.workers import Worker, Workers
from paramsync.following.faults import Fault, fault_of
from paramsync.v1 import sync_pb2 as pb
from tests.support.programs import PATIENCE, eventually
from tests.support.published import Publisher
from tests.support.running import LONG, OPTIONS, SERVING, Running, request

pytestmark = pytest.mark.slow


NEVER = 3600.0  # seconds


@pytest.fixture
def workers() -> Iterator[Workers]:
    """Two processes that do not answer from versions."""
    listeners = Listeners(Settings(models=(), port=0, rest_port=0, control_port=0))
    template, words = Template(), SharedWords(shared_words.create())
    workers = Workers(2, (), {}, listeners, template, words, admit=id, dismiss=id)
    try:
        files = [words.descriptor]
        workers._workers = tuple(Worker(number, 0, template, "trial", descriptors=files) for number in range(2))
        yield workers
    finally:
        workers.close()
        template.close()
        listeners.close()


def test_a_worker_whose_every_request_fails_is_ended(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    channels = [worker.channel for worker in workers._workers]
    for worker, failing in zip(workers._workers, ("", "its requests fail"), strict=True):
        ours, its = pair()
        worker.channel, worker.state = Channel(ours, {}, name="supervisor"), WorkerState.ANSWERING
        answers = Channel(its, {"alive": partial(str, failing)}, name="worker")
        for channel in (worker.channel, answers):
            channel.start()
            channels.append(channel)
    workers.check()
    assert workers._workers[1].exit_code() == -signal.SIGKILL
    assert caplog.messages == ["worker 1 is ended: its requests fail"]
    for channel in channels:
        channel.close()


def test_a_stopped_worker_is_asked_nothing_and_is_ended_at_a_later_check(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("inferencer.supervisor.workers._ALIVE_SECONDS", 0.0)
    [_, stopped] = workers._workers
    workers._workers, stopped.state = (stopped,), WorkerState.ANSWERING
    os.kill(stopped.pid, signal.SIGSTOP)
    eventually(lambda: stopped.is_stopped, lambda: "it to be stopped")
    with stopped.channel._sending:  # as while a message does not fit into its socket
        workers.check()
        workers.check()
    assert stopped.exit_code() == -signal.SIGKILL
    assert (caplog.messages, stopped.hangs) == (["worker 1 is ended: it has been stopped for 0 s"], False)


def versions_that_answer(running: Running, model: str) -> set[int]:
    """As many connections see them, of which each comes to any of the workers."""
    versions = set()
    for _ in range(16):
        with grpc.insecure_channel(f"127.0.0.1:{running.port}", OPTIONS) as channel:
            predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
            versions.add(int(predict(request(model), timeout=LONG).model_spec.version.value))
    return versions


@pytest.mark.promise
def test_a_worker_that_is_stopped_keeps_nobody_waiting_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferencer.supervisor.workers._ALIVE_SECONDS", NEVER)
    monkeypatch.setattr("inferencer.supervisor.shared._MAP_SECONDS", NEVER)
    publishers = {name: Publisher(tmp_path / name) for name in ("one", "other")}
    running = Running(*(publisher.path for publisher in publishers.values()), workers=2)

    def publish(name: str, number: int) -> None:
        publishers[name].publish(number)
        list(running.sync.Sync(pb.SyncRequest(model=name, version=number), timeout=LONG))
        serving = running.status(name).serving
        assert serving is not None
        assert serving.number == number

    def is_replaced(pid: int) -> bool:
        statuses = running.server._fleet.workers.statuses()
        return all(status.state is WorkerState.ANSWERING and status.pid != pid for status in statuses)

    try:
        publish("one", 1)
        publish("other", 1)
        before = [status.pid for status in running.server._fleet.workers.statuses()]
        assert before[1]
        os.kill(before[1], signal.SIGSTOP)
        assert b"paramsync" in running.server._text()
        for number in (2, 3):
            publish("one", number)
            publish("other", number)
        assert running.health(control=True) == SERVING
        assert running.health("other", control=True) == SERVING
        eventually(lambda: is_replaced(before[1]), lambda: "it to be replaced")
        assert versions_that_answer(running, "one") == {3}
        assert versions_that_answer(running, "other") == {3}
    finally:
        running.close()
        for publisher in publishers.values():
            publisher.close()


@pytest.fixture
def template() -> Iterator[Template]:
    template = Template()
    yield template
    template.close()


def _pidfds() -> int:
    return sum("pidfd" in str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink())


def test_one_whose_channel_is_closed_is_killed_and_a_template_that_ended_leaves_no_socket(template: Template) -> None:
    words = shared_words.create()
    open_before = _pidfds()  # children of earlier tests may have left some
    child = ChildProcess(template, "trial", descriptors=[words])
    os.kill(child.pid, signal.SIGSTOP)  # it hears of nothing
    child.channel.close()
    eventually(lambda: child.exit_code() == -signal.SIGKILL, lambda: "it to end")
    assert fault_of(child.fault("calling the graph")) is Fault.THE_MACHINES  # no version is blamed
    assert _pidfds() <= open_before
    child.kill()  # must not kill another process that got the same number
    before = template._socket
    os.kill(template._process.pid, signal.SIGKILL)
    eventually(lambda: template.has_ended, lambda: "the template to end")
    other = ChildProcess(template, "trial", descriptors=[words])
    assert before.fileno() == -1
    assert Path(f"/proc/{other.pid}").exists()
    other.kill()
    os.close(words)


def test_one_that_is_closed_while_it_imports_answers_at_once_and_starts_nothing_more() -> None:
    template = Template()
    waiting = Future[int]()

    def start() -> None:
        try:
            waiting.set_result(template.start("trial", descriptors=[]))
        except BaseException as error:  # noqa: BLE001, it is looked at where it is waited for
            waiting.set_exception(error)

    threading.Thread(target=start, daemon=True).start()
    eventually(template._lock.locked, lambda: "it to be waited for")
    process = template._process
    template.close()
    refused = waiting.exception(PATIENCE)
    assert isinstance(refused, ChildProcessError)
    assert fault_of(refused) is Fault.THE_MACHINES  # no version is put into quarantine for it
    with pytest.raises(ChildProcessError, match="the server ends"):
        template.start("trial", descriptors=[])
    assert template._process is process
    template.close()
