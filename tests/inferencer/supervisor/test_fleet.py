"""What is asked of all workers, where one of them cannot answer, and what is told of one that starts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial

import pytest

from inferencer.processes.channel import Channel, pair
from inferencer.serving.worker_status import WorkerState
from inferencer.settings.settings import Settings
from inferencer.supervisor.fleet import Fleet, Worker
from inferencer.supervisor.listeners import Listeners

pytestmark = pytest.mark.slow


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Of two processes that do not answer from versions."""
    listeners = Listeners(Settings(models=(), port=0, rest_port=0, control_port=0))
    fleet = Fleet(2, (), {}, lambda: ((), ()), listeners)
    try:
        workers = [Worker(fleet.template, "trial", descriptors=[fleet._words_file]) for _ in range(2)]
        for number, worker in enumerate(workers):
            worker.number = number
        fleet._workers = workers
        yield fleet
    finally:
        fleet.close()
        listeners.close()


def test_what_one_worker_refuses_costs_no_answer_of_the_others(fleet: Fleet) -> None:
    assert fleet.ask_all("drain", 0.1, seconds=30.0) == []  # as of one that is being started
    assert fleet.ask_all("pid", seconds=30.0) == [worker.pid for worker in fleet._workers]


def test_a_worker_whose_every_request_fails_is_ended(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    channels = [worker.channel for worker in fleet._workers]
    for worker, failing in zip(fleet._workers, ("", "its requests fail"), strict=True):
        ours, its = pair()
        worker.channel, worker.state = Channel(ours, {}, name="supervisor"), WorkerState.ANSWERING
        answers = Channel(its, {"alive": partial(str, failing)}, name="worker")
        for channel in (worker.channel, answers):
            channel.start()
            channels.append(channel)
    fleet.check()
    assert fleet._workers[1].exit_code() == -signal.SIGKILL
    assert caplog.messages == ["worker 1 is ended: its requests fail"]
    for channel in channels:
        channel.close()


def test_a_worker_that_comes_to_answer_is_told_of_once(fleet: Fleet) -> None:
    fleet._starting.add(fleet._workers[1])
    assert [status.pid for status in fleet.statuses()] == [worker.pid for worker in fleet._workers]
