"""Workers share the one copy of parameters that an importer made of what others wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from paramsync.v1 import sync_pb2 as pb
from tests.hostile.campaigns.ask import family
from tests.support.inferencers import LONG, Process

pytestmark = pytest.mark.slow
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


def saved_model(path: Path) -> list[str]:
    module = Wide()
    tf.saved_model.save(module, str(path / "1"), signatures=module.__call__)
    return []


def saver(path: Path) -> list[str]:
    path.mkdir()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, SHAPE[0]], name="x")
        tf.matmul(x, tf.compat.v1.get_variable("weight", SHAPE), name="y")
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(path / "model"), global_step=1)
    return ["--inputs", "x:0", "--outputs", "y:0"]


@pytest.mark.parametrize("write", [saved_model, saver])
def test_all_workers_together_take_one_copy_of_what_was_imported(
    tmp_path: Path, write: Callable[[Path], list[str]]
) -> None:
    options = write(tmp_path / "m")
    program = Process("--model", f"m={tmp_path / 'm'}", *options, "--workers", str(WORKERS))
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
