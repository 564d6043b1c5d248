"""A watch of the trainer: begins though the trainer comes late, says that there is none, and ends."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from paramsync.publishing.control_port import ControlPort, Training
from paramsync.publishing.publisher import Publisher
from paramsync.remote import trainer_watch
from paramsync.remote.trainer_watch import TrainerWatch
from paramsync.rpc.client import Credentials
from tests.support.programs import eventually
from tests.support.training import ON_REQUEST, Counters


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def test_a_trainer_that_comes_late_is_watched_and_its_absence_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trainer_watch, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(trainer_watch, "_LAST_WAIT", 0.01)
    port = free_port()
    with closing(TrainerWatch(f"127.0.0.1:{port}", Credentials(), lambda: None)):
        eventually(lambda: "found by polling" in caplog.text, lambda: caplog.text)
        with (
            Publisher(tmp_path, Counters(), schedule=ON_REQUEST) as publisher,
            closing(ControlPort("127.0.0.1", port, store=tmp_path)) as control,
        ):
            control.training_begins(Training(publisher=publisher, device="CPU"))
            eventually(lambda: "no bucket" in caplog.text, lambda: caplog.text)


def test_a_watch_that_is_closed_leaves_no_thread(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=ON_REQUEST, control_port=0) as publisher:
        watch = TrainerWatch(publisher.control or "", Credentials(), lambda: None)
        watch.close()
        eventually(
            lambda: not any(thread.name == "trainer watch" for thread in threading.enumerate()), lambda: "its end"
        )
