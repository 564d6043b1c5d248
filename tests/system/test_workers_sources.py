"""Workers answer from every kind of store: what our publisher did not write comes by a process that imports it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from paramsync.v1 import sync_pb2 as pb
from tests.conformance.kinds import KINDS, SIZE, Kind
from tests.support.inferencers import LONG, Process
from tests.support.programs import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    found = request.param(tmp_path / "m")
    yield found
    found.close()


@pytest.fixture
def program(kind: Kind) -> Iterator[Process]:
    options = (
        word
        for name, value in kind.options.items()
        for word in (f"--{name}", ",".join(value) if isinstance(value, (list, tuple)) else str(value))
    )
    kind.publish(1)
    program = Process("--model", f"m={kind.path}", *options, "--workers", "2")
    program.connect()
    yield program
    program.close()


def answer(program: Process) -> tuple[float, int]:
    """The factor that an answer shows, and the version that it names."""
    message = predict_pb2.PredictRequest()
    message.model_spec.name = "m"
    message.inputs["x"].CopyFrom(tf.make_tensor_proto(np.ones([1, SIZE], np.float32)))
    found = program.predict(message, timeout=LONG)
    [factor] = set(tf.make_ndarray(found.outputs["y"]).reshape(-1).tolist())
    return factor, found.model_spec.version.value


def test_what_is_published_serves_and_what_is_damaged_does_not(kind: Kind, program: Process) -> None:
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    assert answer(program) == (1.0, 1)
    kind.publish(2)
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    assert answer(program) == (2.0, 2)
    program.sync.Pin(pb.PinRequest(version=1), timeout=LONG)
    assert answer(program) == (1.0, 1)
    kind.publish(3)
    kind.damage(3)
    program.sync.Unpin(pb.UnpinRequest(), timeout=LONG)
    eventually(lambda: quarantined(program) == [3] or None, lambda: "version 3 to be quarantined")
    assert answer(program) == (2.0, 2)
    kind.publish(4)
    list(program.sync.Sync(pb.SyncRequest(version=4), timeout=LONG))
    assert answer(program) == (4.0, 4)


def quarantined(program: Process) -> list[int]:
    [status] = program.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).models
    return [one.number for one in status.quarantined]
