"""A publisher of one's own that answers an operator: status, publish, and a port that closes with it."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from paramsync.errors import CallError, NotReachableError, SettingsError
from paramsync.keras import PublishCallback
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.rpc.client import Credentials, Trainer
from paramsync.rpc.tls import ClientTls, TlsFiles
from paramsync.session import PublishHook
from paramsync.store.store import Store
from paramsync.v1 import sync_pb2 as pb
from tests.publishing.test_keras import X, Y, network
from tests.support.certificates import Authority
from tests.support.programs import ROOT
from tests.support.sessions import Net
from tests.support.training import EVERY_STEP, ON_REQUEST, TIMEOUT, Counters, latest

v1 = tf.compat.v1


def test_an_operator_sees_how_a_loop_goes_and_has_it_publish(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=ON_REQUEST, control_port=0) as publisher:
        assert publisher.control is not None
        with Trainer(publisher.control) as trainer:
            publisher.begin(0)
            publisher.publish_if_due(6, {"loss": tf.constant(0.5)})
            status = trainer.status()
            assert (status.state, status.step, status.loss) == (pb.PublisherStatus.TRAINING, 6, 0.5)
            assert (status.store, status.device, status.HasField("published")) == (str(tmp_path), "CPU", False)
            answers: list[Any] = []
            asking = threading.Thread(target=lambda: answers.append(trainer.publish(seconds=TIMEOUT)))
            asking.start()
            step = 6
            while asking.is_alive():
                step += 1
                publisher.publish_if_due(step)
            assert answers[0].number == latest(tmp_path).number
            status = trainer.status()
            assert status.published.number == answers[0].number
            assert status.HasField("stall_seconds")
            address = publisher.control
    assert publisher.control is None
    with Trainer(address) as trainer, pytest.raises(NotReachableError):
        trainer.status()


def test_what_a_gate_holds_back_is_told(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP, publish_if="loss", control_port=0) as publisher:
        assert publisher.control is not None
        publisher.publish(1, metrics={"loss": 0.5}, wait=True)
        publisher.publish_if_due(2, {"loss": 0.75})
        with Trainer(publisher.control) as trainer:
            assert trainer.status().held_back == "step 2: loss 0.75 is worse than 0.5, which is published"


def test_a_loss_that_is_no_number_costs_no_status(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=ON_REQUEST, control_port=0) as publisher:
        assert publisher.control is not None
        publisher.publish_if_due(3, {"loss": "low"})  # type: ignore[dict-item]
        with Trainer(publisher.control) as trainer:
            assert (trainer.status().step, trainer.status().HasField("loss")) == (3, False)


def test_a_port_that_is_taken_is_refused_and_leaves_the_store_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"port {port} of 127.0.0.1 is taken; choose another with control_port"):
            Publisher(tmp_path, Counters(), schedule=EVERY_STEP, control_port=port)
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP, control_port=port):
        pass


@pytest.mark.parametrize("port", [-1, 65_536, 99_999, "x", 1.5, True])
def test_what_is_no_port_is_refused_and_leaves_the_store_free(tmp_path: Path, port: Any) -> None:
    with pytest.raises(SettingsError, match="control_port: expected a port from 0 to 65535, found "):
        Publisher(tmp_path, Counters(), schedule=EVERY_STEP, control_port=port)
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP):
        pass


def test_a_port_speaks_tls_by_the_certificate_that_is_there_now(tmp_path: Path) -> None:
    authority, another = Authority(tmp_path), Authority(tmp_path, "another")
    files = authority.sign("trainer")
    with Publisher(
        tmp_path / "store",
        Counters(),
        schedule=EVERY_STEP,
        control_port=0,
        tls=TlsFiles(files.certificate, files.key),
    ) as publisher:
        assert publisher.control is not None
        with Trainer(publisher.control, Credentials(tls=ClientTls(authority.file))) as trainer:
            assert trainer.status().state == pb.PublisherStatus.TRAINING
        with Trainer(publisher.control) as trainer, pytest.raises(CallError, match="it speaks TLS"):
            trainer.status()
        files.replace(another.sign("trainer"))
        with Trainer(publisher.control, Credentials(tls=ClientTls(another.file))) as trainer:
            assert trainer.status().state == pb.PublisherStatus.TRAINING
        with (
            Trainer(publisher.control, Credentials(tls=ClientTls(authority.file))) as trainer,
            pytest.raises(CallError, match="its certificate is not taken"),
        ):
            trainer.status()


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
    ("given", "expected"),
    [
        ({"tls": TlsFiles("c", "k")}, "tls: expected control_port with it, found none"),
        ({"tls": TlsFiles("c", "k"), "control_port": 0}, "tls.certificate c: cannot be read: No such file"),
    ],
)
def test_tls_that_cannot_be_is_refused_by_all_that_publish(tmp_path: Path, given: Any, expected: str) -> None:
    for make in (
        lambda: Publisher(tmp_path, Counters(), schedule=EVERY_STEP, **given),
        lambda: PublishCallback(tmp_path, **given),
        lambda: PublishHook(tmp_path, inputs=None, outputs=None, **given),
    ):
        with pytest.raises(SettingsError, match=f"^{expected}"):
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


def test_a_store_that_is_taken_leaves_the_port_free(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP, control_port=0) as publisher:
        assert publisher.control is not None
        port = int(publisher.control.rpartition(":")[2])
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="expected a directory"):
        Publisher(tmp_path / "file", Counters(), schedule=EVERY_STEP, control_port=port)
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_fit_publishes_when_an_operator_asks(tmp_path: Path) -> None:
    answers: list[pb.Version] = []

    class Operator(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                assert publishing.control is not None
                self.thread = threading.Thread(target=self.ask, args=(publishing.control,))
                self.thread.start()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if answers:
                self.model.stop_training = True

        def ask(self, address: str) -> None:
            with Trainer(address) as trainer:
                answers.append(trainer.publish(seconds=TIMEOUT))

    publishing, operator = PublishCallback(tmp_path, every_seconds=3600, control_port=0), Operator()
    network(keras.Input((4,))).fit(X, Y, batch_size=8, epochs=10_000, verbose=0, callbacks=[publishing, operator])
    operator.thread.join(TIMEOUT)
    assert answers[0].number in [one.number for one in Store(tmp_path).versions()]
    assert publishing.control is None


def test_a_session_has_a_port_too(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        net = Net()
        hook = PublishHook(tmp_path, inputs=net.x, outputs=net.y, every_steps=1, control_port=0, on_error="raise")
        with v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            session.run(net.train)
            assert hook.control is not None
            with Trainer(hook.control) as trainer:
                assert trainer.status().step == 1
    assert hook.control is None


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
