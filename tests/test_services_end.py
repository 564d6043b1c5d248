"""No answer is lost at the end, and what is too much is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tensorflow_serving.apis import (
    prediction_service_pb2_grpc,
)

from tests.programs import eventually
from tests.published import Gated, Publisher
from tests.running import LONG, NOT_SERVING, OPTIONS, Running, request, synced

Code = grpc.StatusCode


@pytest.mark.parametrize("repetition", range(3))
def test_what_was_taken_up_before_the_end_is_answered_to_the_last_byte(
    running: Running, publisher: Publisher, tmp_path: Path, repetition: int
) -> None:
    publisher.publish(7, kind=Gated)
    synced(running)
    gate = tmp_path / "gate"
    x = np.ones([1 << 19, 2], np.float32)  # 4 MB there, and back
    message = request(x=x, called=str(tmp_path / "called"), gate=str(gate))
    channels = [grpc.insecure_channel(f"127.0.0.1:{running.port}", OPTIONS) for _ in range(12)]
    stubs = [prediction_service_pb2_grpc.PredictionServiceStub(one) for one in channels]
    answers = [one.Predict.future(message, timeout=LONG) for one in stubs]
    eventually(lambda: running.server._batching.held == len(answers), lambda: "all to be taken up")
    draining = threading.Thread(target=running.drain)
    draining.start()
    eventually(lambda: running.health(control=True) == NOT_SERVING, lambda: "the drain")
    gate.touch()
    assert all(len(one.result().outputs["same"].float_val) == x.size for one in answers)
    draining.join(LONG)
    for one in channels:
        one.close()


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
