"""No answer is lost at the end, and what is too much is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.programs import ROOT, eventually
from tests.published import Gated, Publisher
from tests.running import LONG, NOT_SERVING, Running, request, synced

Code = grpc.StatusCode


@pytest.mark.parametrize("seconds", [0.0, 0.5])
@pytest.mark.parametrize("rows", [1 << 19, 3 << 17])  # 4 MB there and back; 3, which are on their way in one piece
def test_what_was_taken_up_before_the_end_is_answered_to_the_last_byte(
    running: Running, publisher: Publisher, tmp_path: Path, rows: int, seconds: float
) -> None:
    publisher.publish(7, kind=Gated)
    synced(running)
    gate, message = tmp_path / "gate", tmp_path / "message"
    asked = request(x=np.ones([rows, 2], np.float32), called=str(tmp_path / "called"), gate=str(gate))
    message.write_bytes(asked.SerializeToString())
    command = [sys.executable, "-m", "tests.late_callers", str(running.port), str(message), "12"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as callers:
        eventually(lambda: running.server._batching.held == 12, lambda: "all to be taken up")
        draining = threading.Thread(target=running.drain)
        draining.start()
        eventually(lambda: running.health(control=True) == NOT_SERVING, lambda: "the drain")
        time.sleep(seconds)  # callers that were told of the end by now would be left with the last answer
        gate.touch()
        became = callers.communicate(timeout=LONG)[0].split("\n")
    assert len(became) == 13, became
    assert all(one.isdigit() and int(one) > rows * 8 for one in became[:12]), became
    draining.join(LONG)


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
