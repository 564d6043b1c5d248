"""Workers answer from every kind of store, and take one copy of what is imported, for all of them together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from paramsync.v1 import sync_pb2 as pb
from tests.conformance.kinds import KINDS, SIZE, Kind
from tests.hostile.campaigns.ask import family
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
    with Process("--model", f"m={kind.path}", *options, "--workers", "2") as program:
        yield program


def answer(program: Process) -> tuple[float, int]:
    """The factor that an answer shows, and the version that it names."""
    message = predict_pb2.PredictRequest()
    message.model_spec.name = "m"
    message.inputs["x"].CopyFrom(tf.make_tensor_proto(np.ones([1, SIZE], np.float32)))
    found = program.predict(message, timeout=LONG)
    [factor] = set(tf.make_ndarray(found.outputs["y"]).reshape(-1).tolist())
    return factor, found.model_spec.version.value


@pytest.mark.promise
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


WORKERS = 3
SHAPE = (4096, 4096)  # well over the memory that a process of TensorFlow has for itself in one mapping
BYTES = 4 * SHAPE[0] * SHAPE[1]


class Wide(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.ones(SHAPE))

    @tf.function(input_signature=[tf.TensorSpec([None, SHAPE[0]], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.matmul(x, self.weight)}


def test_all_workers_together_take_one_copy_of_what_was_imported(tmp_path: Path) -> None:
    module = Wide()
    tf.saved_model.save(module, str(tmp_path / "m" / "1"), signatures=module.__call__)
    program = Process("--model", f"m={tmp_path / 'm'}", "--workers", str(WORKERS))
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.ones([1, SHAPE[0]], np.float32)))
    program.predict(request, timeout=LONG)
    shared, private = taken(program)
    program.close()
    assert 0.95 * BYTES < shared < 1.05 * BYTES
    assert private < BYTES  # nobody has a copy of its own


def taken(program: Process) -> tuple[int, int]:
    """Bytes of the imported parameters in all processes, each page counted once; and the largest private mapping."""
    shared = private = 0
    for pid in (program.process.pid, *family(program.process.pid)):
        with suppress(OSError):
            is_shared = False
            for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
                if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                    is_shared = "memfd:parameters" in line
                elif line.startswith("Pss:"):
                    size = int(line.split()[1]) * 1024
                    shared += size * is_shared
                    private = max(private, size * (not is_shared))
    return shared, private
