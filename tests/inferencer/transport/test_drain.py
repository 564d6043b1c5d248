"""No answer is lost at the end, and nothing holds the end up."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from paramsync.http2 import frames
from paramsync.http2.errors import ErrorCode
from tests.support import http2_client
from tests.support.http2_client import Http2Client
from tests.support.in_process import InProcess
from tests.support.programs import ROOT, bounded, eventually
from tests.support.published import Gated, Publisher
from tests.support.running import LONG, NOT_SERVING, Running, request


@pytest.mark.parametrize("rows", [1 << 19, 3 << 17])  # 4 MB there and back; 3, which are on their way in one piece
def test_what_was_taken_up_before_the_end_is_answered_to_the_last_byte(
    in_process: InProcess, publisher: Publisher, tmp_path: Path, gate: Path, rows: int
) -> None:
    in_process.restore(publisher.publish(8, kind=Gated))
    message = tmp_path / "message"
    asked = request(x=np.ones([rows, 2], np.float32), called=str(tmp_path / "called"), gate=str(gate))
    message.write_bytes(asked.SerializeToString())
    command = [sys.executable, "-m", "tests.support.late_callers", str(in_process.port), str(message), "12"]
    with bounded(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)) as callers:
        try:
            eventually(lambda: in_process.server.batcher.held == 12, lambda: "all to be taken up")
            with _draining(in_process):
                gate.touch()
                became = callers.communicate(timeout=LONG)[0].split("\n")
        finally:
            gate.touch()
    assert len(became) == 13, became
    assert all(one.isdigit() and int(one) > rows * 8 for one in became[:12]), became


def test_calls_that_come_after_it_said_so_are_answered_while_others_are_under_way(
    in_process: InProcess, publisher: Publisher, tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferencer.transport.grpc_port.MOST_ANSWERING", LONG)
    in_process.restore(publisher.publish(8, kind=Gated))
    called, x = tmp_path / "called", np.ones([1, 2], np.float32)
    predict = in_process.prediction_service.Predict
    first = predict.future(request(x=x, called=str(called), gate=str(gate)), timeout=LONG)
    eventually(called.exists, lambda: "the first call")
    with _draining(in_process):
        at_once = request(x=x, called=str(tmp_path / "later"), gate=str(called))
        assert predict(at_once, timeout=LONG).model_spec.version.value == 8
        gate.touch()
        assert first.result().model_spec.version.value == 8


def test_a_client_that_calls_all_the_time_is_told_to_leave_before_a_call_is_refused(
    in_process: InProcess, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferencer.transport.grpc_port.MOST_ANSWERING", 0.0)
    monkeypatch.setattr("inferencer.transport.grpc_port.MOST_LEAVING", LONG)
    in_process.restore(publisher.publish(8))
    content = request(x=np.ones([1, 2], np.float32)).SerializeToString()
    streams = itertools.count(1, 2)
    with Http2Client(in_process.port) as client:
        client.send(frames.frame(frames.SETTINGS, frames.ACK, 0, b""))

        def status() -> int | None:
            stream = next(streams)
            client.send(http2_client.request(stream) + http2_client.message(stream, content))
            return client.response(stream).status

        assert status() == 0
        with _draining(in_process):
            while client.code is None:  # behind a load balancer, its next connection leads to another server
                assert status() == 0
            assert client.code == ErrorCode.NO_ERROR
            client.socket.close()


@contextmanager
def _draining(running: Running) -> Iterator[None]:
    """From when it said so until it is over."""
    with ThreadPoolExecutor(1) as thread:
        drained = thread.submit(running.drain)
        eventually(lambda: _says(running) == NOT_SERVING, lambda: "the drain")
        yield
        drained.result(LONG)


def _says(running: Running) -> int:
    """What a caller is told who connects only now."""
    with grpc.insecure_channel(f"127.0.0.1:{running.port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        return int(health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=LONG).status)


def test_a_stream_that_its_caller_never_ends_does_not_hold_up_the_end(running: Running) -> None:
    over = threading.Event()

    def ask() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        over.wait(LONG)

    stub = reflection_pb2_grpc.ServerReflectionStub(running.predictions)
    answers = stub.ServerReflectionInfo(ask(), timeout=LONG)
    assert next(answers).list_services_response.service
    running.drain()  # fails where it takes longer than the grace
    assert list(answers) == []
    over.set()
