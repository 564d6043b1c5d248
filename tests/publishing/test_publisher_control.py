"""The control port of a Publisher, and the options that all publishers check."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from paramsync.errors import CallError, SettingsError
from paramsync.keras import PublishCallback
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.rpc.client import Credentials, Trainer
from paramsync.rpc.tls import ClientTls, TlsFiles
from paramsync.session import PublishHook
from paramsync.v1 import sync_pb2 as pb
from tests.support.certificates import Authority
from tests.support.programs import ROOT
from tests.support.training import EVERY_STEP, ON_REQUEST, TIMEOUT, Counters, latest

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
