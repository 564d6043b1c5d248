"""Workers that crash again and again: on a version, which ends in quarantine, or for no reason that is known."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from inferencer.supervisor import crashes
from inferencer.supervisor.crashes import QUICK_SECONDS, Crashes, CrashLoops
from paramsync.status import State
from paramsync.v1 import sync_pb2 as pb
from tests.support.hostile_graphs import KillingLater
from tests.support.programs import PATIENCE, eventually
from tests.support.published import Publisher, proven
from tests.support.running import LONG, NOT_SERVING, SERVING, Running, request, seen, synced


def test_the_version_that_was_computed_in_three_crashes_is_the_cause() -> None:
    found = Crashes()
    assert found.add({1, 2}, 10.0) == []
    assert found.add({1, 3}, 11.0) == []
    assert found.add({1}, 12.0) == [1]
    assert found.add({2}, 13.0) == []  # what was computed beside it is not suspected any more
    assert found.add({2}, 14.0) == []


def test_of_two_that_were_always_computed_together_none_is_the_cause_until_it_was_six_times() -> None:
    found = Crashes()
    assert [found.add({1, 2}, float(now)) for now in range(5)] == [[]] * 5
    assert sorted(found.add({1, 2}, 5.0)) == [1, 2]


def test_crashes_of_more_than_a_minute_ago_and_such_of_nothing_do_not_count() -> None:
    found = Crashes()
    assert [found.add({1}, now) for now in (0.0, 40.0, 80.0, 120.0)] == [[]] * 4
    assert [found.add((), now) for now in (121.0, 122.0, 123.0)] == [[]] * 3


def test_a_worker_that_ends_three_times_soon_after_its_start_is_in_a_loop_until_it_lives() -> None:
    loops = CrashLoops()
    assert [loops.ended(0, 1.0, "SIGSEGV") for _ in range(2)] == [1, 2]
    assert loops.trouble == ""
    assert loops.ended(1, QUICK_SECONDS + 1, "SIGSEGV") == 0
    assert loops.ended(0, 1.0, "SIGSEGV") == 3
    assert loops.trouble == "worker 0 ended 3 times in a row soon after its start (SIGSEGV)"
    loops.calm(0)
    assert loops.trouble == ""


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path / "m")
    yield publisher
    publisher.close()


def ask_until_quarantined(running: Running, version: int) -> int:
    """Ask until then. Returns how many calls failed, each of them because its worker crashed."""
    failed: list[grpc.StatusCode] = []
    end = time.monotonic() + PATIENCE
    while running.status().quarantine_of(version) is None:
        assert time.monotonic() < end, running.status()
        try:
            running.prediction_service.Predict(request(), timeout=LONG, wait_for_ready=True)
        except grpc.RpcError as error:
            failed.append(error.code())
    assert {*failed} == {grpc.StatusCode.UNAVAILABLE}
    return len(failed)


def answered(running: Running) -> int:
    answer = running.prediction_service.Predict(request(), timeout=LONG, wait_for_ready=True)
    version = int(answer.model_spec.version.value)
    assert proven(seen(answer), version)
    return version


def end_worker(running: Running, number: int) -> None:
    pid = eventually(lambda: worker(running, number).pid, lambda: f"worker {number} to be there")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: worker(running, number).pid != pid, lambda: "its end to be seen")


def worker(running: Running, number: int) -> pb.WorkerStatus:
    found: list[pb.WorkerStatus] = list(running.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).workers)
    assert [one.number for one in found] == [0, 1]
    return found[number]


def healths(running: Running) -> list[int]:
    return [running.health(control=control) for control in (False, True)]


@pytest.mark.slow
def test_a_version_on_which_workers_crash_when_they_answer_is_quarantined_and_the_one_before_serves_or_none(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(1, kind=KillingLater)  # which survives its trial, on zeros
    running = Running(tmp_path / "m", workers=1)
    synced(running)
    ask_until_quarantined(running, 1)
    eventually(lambda: running.status().state is State.WAITING, lambda: f"nothing to serve: {running.status()}")

    def refusal() -> grpc.RpcError:
        with pytest.raises(grpc.RpcError) as raised:
            running.prediction_service.Predict(request(), timeout=LONG, wait_for_ready=True)
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        return raised.value

    reason = "version 1 is quarantined: workers crashed"  # which the worker that took the last one's place is told soon
    eventually(lambda: reason in str(refusal().details()), lambda: f"{reason} to be said: {refusal()}")
    publisher.publish(2)
    synced(running)
    publisher.publish(3, kind=KillingLater)
    synced(running)
    running.server.models.find("m").followers[0].label("best", 3, timeout=LONG)
    assert ask_until_quarantined(running, 3) >= crashes.CRASHES
    assert "workers crashed while they computed it (SIG" in running.status().quarantined[-1].reason
    assert answered(running) == 2
    assert "best" not in running.status().labels
    running.close()


@pytest.mark.promise
@pytest.mark.slow
def test_workers_that_end_again_and_again_are_reported_and_fail_health_until_they_live(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(1)
    running = Running(tmp_path / "m", workers=2)
    synced(running)
    for _ in range(crashes.LOOP):
        end_worker(running, 0)
    text = "worker 0 ended 3 times in a row soon after its start"
    eventually(lambda: text in running.status().reason, lambda: f"that to be told: {running.status()}")
    eventually(lambda: healths(running) == [NOT_SERVING] * 2, lambda: "health to fail on both ports")
    assert running.health("m") == SERVING  # it does, by what is left
    assert (worker(running, 0).restarts, worker(running, 1).restarts) == (crashes.LOOP, 0)
    eventually(lambda: worker(running, 0).state == pb.WorkerStatus.ANSWERING, lambda: "another one to answer")
    now, before = worker(running, 0), worker(running, 1)
    assert before.since < now.since <= time.time()
    assert 0 < now.private_bytes < now.resident_bytes == pytest.approx(before.resident_bytes, rel=0.5)
    assert 'paramsync_worker_restarts_total{worker="0"} 3.0' in running.server._text().decode()
    assert "paramsync_workers_failing 1.0" in running.server._text().decode()
    eventually(lambda: running.status().reason == "", lambda: f"that to be over: {running.status()}")
    eventually(lambda: healths(running) == [SERVING] * 2, lambda: "health to be well again")
    assert answered(running) == 1
    assert running.status().quarantined == ()
    running.close()
