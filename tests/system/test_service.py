"""The serving program as a service manager runs it: it says when it is ready and when it stops, and logs JSON."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb
from tests.support.inferencers import Process
from tests.support.programs import PATIENCE, events, eventually
from tests.support.published import Publisher

pytestmark = pytest.mark.slow


def test_a_service_says_when_it_is_ready_and_when_it_stops_and_logs_one_event_a_line(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish(3)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        program = Process("--model", f"m={tmp_path / 'm'}", "--workers", "1", "--log-format", "json")
        try:
            state, status = manager.recv(4096).decode().split("\n")
            assert state == "READY=1"
            assert re.fullmatch(r"STATUS=predictions \S+:\d+, control \S+:\d+, HTTP \S+:\d+", status)
            publisher.publish_bad(4)
            eventually(lambda: [one for one in program.lines if "quarantined" in one], lambda: "a quarantine")
            program.process.send_signal(signal.SIGTERM)
            assert manager.recv(4096) == b"STOPPING=1\nSTATUS=answering what is in flight"
            assert program.ended() == 0
        finally:
            program.close()
    logged = events(program.lines)
    assert all(event.keys() >= {"time", "level", "logger", "message"} for event in logged)
    [served] = [event for event in logged if "serves" in event["message"]]
    assert (served["model"], served["version"], served["level"]) == ("m", 3, "INFO")
    [refused] = [event for event in logged if "quarantined" in event["message"]]
    assert (refused["model"], refused["version"], refused["level"]) == ("m", 4, "WARNING")
    assert logged[-1]["message"] == "inferencer stopped"


def test_a_service_that_is_stopped_before_it_is_ready_has_nothing_go_wrong(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(1)
    program = Process("--model", f"m={tmp_path / 'm'}", "--workers", "1")
    try:
        eventually(lambda: "control " in "".join(program.lines), lambda: "a control port")
        os.kill(program.template, signal.SIGSTOP)  # which imports TensorFlow
        [address] = re.findall(r"control (\S+) answers; importing TensorFlow", "".join(program.lines))
        with Inferencer(address) as inferencer:
            [worker] = inferencer.report().workers
            assert (worker.state, worker.pid) == (pb.WorkerStatus.STARTING, 0)
            assert not inferencer.serves()
        asked = [sys.executable, "-m", "paramsync.cli", "status", "--server", address]
        shown = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout
        assert re.search(r"^workers: starting, importing TensorFlow, \d[^,]*$", shown, re.MULTILINE), shown
        program.process.send_signal(signal.SIGTERM)
        assert program.ended() == 0
    finally:
        program.close()
    logged = "".join(program.lines)
    assert "inferencer ready" not in logged
    assert "does not start" not in logged  # as a worker does that is forked once TensorFlow was imported all the same
    assert "quarantined" not in logged
