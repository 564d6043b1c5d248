"""The trainer's control port, over real gRPC."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from paramsync.cli.__main__ import main
from paramsync.errors import SettingsError
from paramsync.publishing import control_port
from paramsync.publishing.control_port import MOST_PUBLISHING, ControlPort, Training
from paramsync.publishing.job import Job
from paramsync.publishing.metrics import Meter
from paramsync.publishing.publisher import Publisher
from paramsync.rpc.client import Trainer
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.v1 import sync_pb2
from tests.rpc.test_addresses import IPV6
from tests.support.control_ports import STATES, TIMEOUT, Doubling, Pair, status
from tests.support.programs import eventually
from trainer.state import TrainingState


@contextmanager
def stepping(publisher: Publisher) -> Iterator[None]:
    """A training loop beside the test, that takes steps until the block ends."""
    over = threading.Event()

    def steps() -> None:
        step = 0
        while not over.is_set():
            step += 1
            publisher.publish_if_due(step)

    thread = threading.Thread(target=steps)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(TIMEOUT)


def healthy(pair: Pair, service: str = "") -> bool:
    request = health_pb2.HealthCheckRequest(service=service)
    answer = health_pb2_grpc.HealthStub(pair.channel).Check(request, timeout=TIMEOUT)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def test_status_and_health_follow_training_from_start_to_end(pair: Pair) -> None:
    assert status(pair) == STATES(state=STATES.STARTING, store=str(pair.store))
    assert not healthy(pair)
    with pair.training() as publisher:
        found = status(pair)
        assert (found.state, found.step, found.loss, found.device) == (STATES.TRAINING, 7, 0.5, "CPU")
        assert not found.HasField("total_steps")
        assert not found.HasField("published")
        assert healthy(pair)
        assert healthy(pair, "paramsync.v1.Publisher")
        version = publisher.publish(7, wait=True)
        found = status(pair)
        assert (found.published.number, found.publishes, found.last_error) == (version.number, 1, "")
        pair.control.training_ends()
        assert status(pair).state == STATES.STOPPING
        assert not healthy(pair)


def test_publish_answers_when_the_version_is_committed(pair: Pair) -> None:
    with pair.training() as publisher, stepping(publisher):
        answer = pair.stub.Publish(sync_pb2.PublishRequest(), timeout=TIMEOUT)
        latest = Store(pair.store).latest()
    assert latest is not None
    assert (answer.number, answer.step, answer.committed_at) == (latest.number, latest.step, latest.committed_at)
    assert (answer.graph, answer.bytes, answer.prefix) == (latest.graph, latest.bytes, latest.prefix)


def test_publish_before_training_begins_may_be_tried_again(pair: Pair) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        pair.stub.Publish(sync_pb2.PublishRequest(), timeout=TIMEOUT)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_publish_after_training_has_stopped_is_a_failed_precondition(pair: Pair) -> None:
    with pair.training() as publisher:
        publisher.finish(1)
        with pytest.raises(grpc.RpcError) as refused:
            pair.stub.Publish(sync_pb2.PublishRequest(), timeout=TIMEOUT)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "training has stopped" in str(refused.value.details())


def test_a_publication_that_fails_is_an_internal_error_that_says_why(pair: Pair) -> None:
    with pair.training() as publisher:
        (pair.store / ".tmp-checkpoint").mkdir()
        with stepping(publisher), pytest.raises(grpc.RpcError) as failed:
            pair.stub.Publish(sync_pb2.PublishRequest(), timeout=TIMEOUT)
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert str(pair.store) in str(failed.value.details())


def test_callers_of_publish_that_leave_give_their_threads_back(pair: Pair) -> None:
    with pair.training() as publisher:  # takes no step, so that Publish has to wait
        for _ in range(3 * control_port.MOST_WATCHING):
            with pytest.raises(grpc.RpcError) as late:
                pair.stub.Publish(sync_pb2.PublishRequest(), timeout=0.05)
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        with stepping(publisher):
            assert pair.stub.Publish(sync_pb2.PublishRequest(), timeout=TIMEOUT).number > 0


def test_only_so_many_wait_for_a_publication_and_status_is_answered_beside_them(pair: Pair) -> None:
    over: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with pair.training() as publisher:  # takes no step, so that Publish has to wait
        calls = [pair.stub.Publish.future(sync_pb2.PublishRequest(), timeout=TIMEOUT) for _ in range(20)]
        for call in calls:
            call.add_done_callback(over.put)
        refused = [over.get(timeout=TIMEOUT) for _ in range(len(calls) - MOST_PUBLISHING)]
        assert {call.code() for call in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert any(f"{MOST_PUBLISHING} wait for a publication already" in call.details() for call in refused)
        assert status(pair).state == STATES.TRAINING
        assert healthy(pair)
        with stepping(publisher):
            assert all(call.result().number > 0 for call in calls if call not in refused)


def test_callers_that_leave_at_once_hold_no_place(pair: Pair) -> None:
    def places_are_free() -> bool:
        calls = [pair.stub.Publish.future(sync_pb2.PublishRequest(), timeout=0.2) for _ in range(MOST_PUBLISHING)]
        return {call.code() for call in calls} == {grpc.StatusCode.DEADLINE_EXCEEDED}  # all of them were waiting

    with pair.training():  # takes no step
        for attempt in range(500):
            call = pair.stub.Publish.future(sync_pb2.PublishRequest())
            threading.Event().wait(attempt % 5 * 0.0003)  # so that the server has come more or less far with it
            call.cancel()
        eventually(places_are_free, lambda: "every place to be free again")


def test_status_says_how_long_publishing_took_and_where_training_would_resume(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pair.training() as publisher:
        before = status(pair)
        for absent in ("stall_seconds", "publish_seconds", "saved_step", "published", "total_steps"):
            assert not before.HasField(absent)
        published = publisher.publish(1, wait=True)
        meter = Meter(7, time.monotonic())
        meter.stall = 0.00042
        model = Doubling()
        job = Job(model=model, step=tf.Variable(7), train_step=lambda: model.by)
        with (
            StoreWriter(tmp_path / "state") as states,
            closing(TrainingState(states, tmp_path / "state", job)) as state,
        ):
            state.finish(7)
            pair.control.training_begins(
                Training(
                    publisher=publisher, meter=meter, device="CPU", total_steps=9, steps_per_epoch=None, state=state
                )
            )
            found = status(pair)
            assert (found.stall_seconds, found.saved_step, found.steps_per_epoch) == (0.00042, 7, 0)
            assert published.committed_at is not None
            assert found.publish_seconds == published.committed_at - published.snapshot_at > 0
            state.error = "the disk is full"
            main(["status", "--trainer", pair.control.address, "--inferencer", "127.0.0.1:1"])
    text = capsys.readouterr().out
    assert "0.4 ms" in text
    assert "training state: last error: the disk is full" in text
    assert max(map(len, text.splitlines()[:2])) <= 80


def test_a_port_that_is_taken_is_refused(pair: Pair) -> None:
    host, _, port = pair.control.address.partition(":")
    with pytest.raises(SettingsError, match=f"port {port} of {host} is taken; choose another with --control-port"):
        ControlPort(host, int(port), store=pair.store)


def test_reflection_lists_the_services(pair: Pair) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(pair.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    answer = next(stub.ServerReflectionInfo(iter([request]), timeout=TIMEOUT))
    names = {service.name for service in answer.list_services_response.service}
    assert {"paramsync.v1.Publisher", "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize("host", ["127.0.0.1", IPV6])
def test_the_address_can_be_called_as_it_is_written(host: str, tmp_path: Path) -> None:
    with closing(ControlPort(host, 0, store=tmp_path)) as control, Trainer(control.address) as client:
        assert client.status().state == STATES.STARTING
