"""The control port of a training program and of a Publisher, over real gRPC, and options that publishers check."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paramsync.errors import BusyError, CallError, SettingsError
from paramsync.keras import PublishCallback
from paramsync.publishing import control_port
from paramsync.publishing.control_port import MOST_PUBLISHING, MOST_UNREAD, MOST_WATCHING, ControlPort
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.rpc.client import Credentials, Trainer
from paramsync.rpc.tls import ClientTls, TlsFiles
from paramsync.session import PublishHook
from paramsync.store.store import Store
from paramsync.v1 import sync_pb2, sync_pb2_grpc
from paramsync.v1 import sync_pb2 as pb
from tests.support.certificates import Authority
from tests.support.control_ports import STATES, TIMEOUT, Pair, status
from tests.support.programs import ROOT, eventually
from tests.support.training import EVERY_STEP, ON_REQUEST, Counters, latest
from tests.support.written import version


@contextmanager
def stepping(publisher: Publisher) -> Iterator[None]:
    """Take training steps on a thread until the block ends."""
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


def publish(pair: Pair, timeout: float = TIMEOUT) -> Any:
    return pair.stub.Publish(sync_pb2.PublishRequest(), timeout=timeout)


def watch(pair: Pair) -> Any:
    call = pair.stub.Watch(sync_pb2.WatchPublisherRequest(), timeout=TIMEOUT)
    call.initial_metadata()  # arrives when nothing is missed any more
    return call


def test_status_and_health_follow_training_from_start_to_end(pair: Pair) -> None:
    assert status(pair) == STATES(state=STATES.STARTING, store=str(pair.store))
    assert not healthy(pair)
    with pytest.raises(grpc.RpcError) as refused:
        publish(pair)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    with pair.training() as publisher:
        found = status(pair)
        assert (found.state, found.step, found.loss, found.device) == (STATES.TRAINING, 7, 0.5, "CPU")
        for absent in ("stall_seconds", "publish_seconds", "saved_step", "published", "total_steps"):
            assert not found.HasField(absent)
        assert healthy(pair)
        assert healthy(pair, "paramsync.v1.Publisher")
        version = publisher.publish(7, wait=True)
        found = status(pair)
        assert (found.published.number, found.publishes, found.last_error) == (version.number, 1, "")
        assert version.committed_at is not None
        assert found.publish_seconds == version.committed_at - version.snapshot_at > 0
        pair.control.training_ends()
        assert status(pair).state == STATES.STOPPING
        assert not healthy(pair)
        publisher.finish(7)
        with pytest.raises(grpc.RpcError) as refused:
            publish(pair)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "training has stopped" in str(refused.value.details())


def test_publish_answers_when_the_version_is_committed(pair: Pair) -> None:
    with pair.training() as publisher, stepping(publisher):
        answer = publish(pair)
        latest = Store(pair.store).latest()
    assert latest is not None
    assert (answer.number, answer.step, answer.committed_at) == (latest.number, latest.step, latest.committed_at)
    assert (answer.graph, answer.bytes, answer.prefix) == (latest.graph, latest.bytes, latest.prefix)


def test_a_publication_that_fails_is_an_internal_error_that_says_why(pair: Pair) -> None:
    with pair.training() as publisher:
        (pair.store / ".tmp-checkpoint").mkdir()
        with stepping(publisher), pytest.raises(grpc.RpcError) as failed:
            publish(pair)
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert str(pair.store) in str(failed.value.details())


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


def test_watch_reports_every_version_from_now_on(pair: Pair) -> None:
    with pair.training() as publisher:
        publisher.publish(1, wait=True)
        call = watch(pair)
        numbers = [publisher.publish(step, wait=True).number for step in (2, 3, 4)]
        assert [next(call).number for _ in numbers] == numbers


def test_there_are_only_so_many_watchers_and_status_is_answered_beside_them(pair: Pair) -> None:
    calls = [watch(pair) for _ in range(MOST_WATCHING)]
    with pytest.raises(grpc.RpcError) as refused:
        next(pair.stub.Watch(sync_pb2.WatchPublisherRequest(), timeout=TIMEOUT))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert status(pair).state == STATES.STARTING
    calls[0].cancel()
    eventually(lambda: watch(pair).is_active(), lambda: "the place of a watcher that left to be free")


def test_a_watcher_that_does_not_read_is_dropped() -> None:
    watchers = control_port.Watchers(MOST_WATCHING)
    slow = watchers.add()
    for number in range(MOST_UNREAD + 10):
        watchers.put(version(number))
    *read, end = [slow.get_nowait() for _ in range(slow.qsize())]
    assert read == [version(number) for number in range(MOST_UNREAD)]
    assert isinstance(end, BusyError)


def test_closing_the_port_ends_every_watch(tmp_path: Path) -> None:
    control = ControlPort("127.0.0.1", 0, store=tmp_path)
    with grpc.insecure_channel(control.address) as channel, ThreadPoolExecutor() as pool:
        call = sync_pb2_grpc.PublisherStub(channel).Watch(sync_pb2.WatchPublisherRequest(), timeout=TIMEOUT)
        call.initial_metadata()
        versions = pool.submit(list, call)
        control.close()
        assert versions.result(TIMEOUT) == []
        assert call.code() is grpc.StatusCode.OK


v1 = tf.compat.v1


def test_what_a_gate_holds_back_is_told(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP, publish_if="loss", control_port=0) as publisher:
        assert publisher.control is not None
        publisher.publish(1, metrics={"loss": 0.5}, wait=True)
        publisher.publish_if_due(2, {"loss": 0.75})
        with Trainer(publisher.control) as trainer:
            assert trainer.status().held_back == "step 2: loss 0.75 is worse than 0.5, which is published"


def test_a_port_that_is_taken_is_refused_and_leaves_the_store_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"port {port} of 127.0.0.1 is taken; choose another with control_port"):
            Publisher(tmp_path, Counters(), schedule=EVERY_STEP, control_port=port)
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP, control_port=port):
        pass


@pytest.mark.parametrize("port", [-1, 65_536, "x", True])
def test_what_is_no_port_is_refused_and_leaves_the_store_free(tmp_path: Path, port: Any) -> None:
    with pytest.raises(SettingsError, match="control_port: expected a port from 0 to 65535, found "):
        Publisher(tmp_path, Counters(), schedule=EVERY_STEP, control_port=port)
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP):
        pass


def test_with_a_client_ca_callers_show_a_certificate_and_need_no_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    files, mine = authority.sign("trainer"), authority.sign("alice")
    ca = authority.file
    with Publisher(
        tmp_path / "store",
        Counters(),
        schedule=ON_REQUEST,
        control_port=0,
        host="0.0.0.0",
        tls=TlsFiles(str(files.certificate), str(files.key), str(ca)),
    ) as publisher:
        assert publisher.control is not None
        address = publisher.control.replace("0.0.0.0", "127.0.0.1")
        with (
            Trainer(address, Credentials(tls=ClientTls(ca))) as trainer,
            pytest.raises(CallError, match="it wants a certificate of its callers"),
        ):
            trainer.status()
        with Trainer(address, Credentials(tls=ClientTls(ca, mine.certificate, mine.key))) as trainer:
            answers: list[pb.Version] = []
            with caplog.at_level("INFO", logger="paramsync.audit"):
                asking = threading.Thread(target=lambda: answers.append(trainer.publish(seconds=TIMEOUT)))
                asking.start()
                step = 0
                while asking.is_alive():
                    publisher.publish_if_due(step := step + 1)
            assert answers[0].number == latest(tmp_path / "store").number
    assert "what='paramsync.v1.Publisher/Publish' who='alice'" in caplog.text
    assert "--t" not in caplog.text


@pytest.mark.parametrize(
    ("given", "kind", "expected"),
    [
        ({"tls": TlsFiles("c", "k")}, SettingsError, "tls: expected control_port with it, found none"),
        (
            {"tls": TlsFiles("c", "k"), "control_port": 0},
            SettingsError,
            "tls.certificate c: cannot be read: No such file",
        ),
        ({"keep": 0}, SettingsError, "keep: expected at least 1 version, found 0"),
        ({"publish_if": "speed"}, SettingsError, "publish_if: expected a metric"),
        ({"on_error": "stop"}, SettingsError, 'on_error: expected "log" or "raise", found \'stop\''),
        ({"tls_cert": "c", "keep_for": 3}, TypeError, "unexpected keyword arguments: keep_for, tls_cert"),
    ],
)
def test_options_that_cannot_be_are_refused_by_all_that_publish(
    tmp_path: Path, given: Any, kind: type[Exception], expected: str
) -> None:
    for make in (
        lambda: Publisher(tmp_path, Counters(), schedule=EVERY_STEP, **given),
        lambda: PublishCallback(tmp_path, **given),
        lambda: PublishHook(tmp_path, inputs=None, outputs=None, **given),
    ):
        with pytest.raises(kind, match=f"^{expected}"):
            make()
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP):
        pass


def test_advice_names_what_a_publisher_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP, control_port=0, host="0.0.0.0"):
        assert "start with PARAMSYNC_TOKEN_FILE (or PARAMSYNC_TOKEN) or tls.client_ca FILE" in caplog.text
    monkeypatch.setenv("PARAMSYNC_TOKEN", "5ecret-of-the-operators")
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP, control_port=0, host="0.0.0.0"):
        assert "start with tls.certificate FILE and tls.key FILE" in caplog.text


@pytest.mark.parametrize("port", [None, 0])
def test_grpc_is_imported_only_for_a_port(tmp_path: Path, port: int | None) -> None:
    with Publisher(tmp_path, Counters(), schedule=PublishSchedule(at_start=True)) as publisher:
        publisher.publish(1, wait=True)
    code = f"""
import sys
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
with Publisher.of_graph({str(tmp_path)!r}, schedule=PublishSchedule(every_steps=1), control_port={port}) as publisher:
    pass
print("grpc" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=TIMEOUT
    )
    assert done.stdout == f"{port is not None}\n"
