"""Distribution strategies and mixed precision: published values are those of one step, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.dtypes import Array
from paramsync.following.replica import Replica
from paramsync.keras import PublishCallback
from paramsync.store.store import Store
from paramsync.tensorbundle.index import OBJECT_GRAPH
from paramsync.version import Version
from tests.support.checkpoints import assert_same
from tests.support.mirrored import STEPS
from tests.support.programs import ROOT

X = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def values(store: Path, version: Version) -> dict[str, Array]:
    bundle = Store(store).open(version)
    bundle.verify(bundle.entries)
    return {name: bundle.array(name) for name in bundle.entries if name != OBJECT_GRAPH}


def latest(store: Path) -> Version:
    found = Store(store).latest()
    assert found is not None
    return found


def answer(store: Path) -> Any:
    """The answer of a replica of the latest version for X."""
    replica = Replica("model", Store(store))
    (output,) = replica.restore(latest(store)).predict({"x": X}).values()
    return output


def mirrored(what: str, store: Path) -> Any:
    """The output of a training process with two replicas: devices can only be divided before TensorFlow starts."""
    command = [sys.executable, "-m", "tests.support.mirrored", what, str(store)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_versions_of_a_mirrored_loop_are_of_one_step_and_hold_each_variable_once(tmp_path: Path) -> None:
    seen = mirrored("loop", tmp_path)["seen"]
    assert seen == {step: [float(step)] for step in seen}
    assert str(STEPS) in seen
    assert len(seen) > 5


@pytest.mark.slow
def test_what_each_replica_has_on_its_own_is_published_as_it_is_read(tmp_path: Path) -> None:
    found = mirrored("on_read", tmp_path)
    published = values(tmp_path, latest(tmp_path))
    assert len(published) == 3
    for key, value in found["values"].items():
        assert_same(published[key], np.array(value, np.float32))
    assert found["values"]["own/0/.ATTRIBUTES/VARIABLE_VALUE"][:2] == [16.5, 33.0]
    assert found["values"]["own/1/.ATTRIBUTES/VARIABLE_VALUE"][:2] == [3.0, 6.0]
    np.testing.assert_allclose(answer(tmp_path), found["answer"], rtol=1e-6)
    assert "'SUM:0' is ON_READ, with a value on each replica, and read as their SUM" in found["refused"]
    assert "make it ON_WRITE" in found["refused"]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_fit_with_mixed_precision_publishes_the_full_precision_and_answers_as_the_model(
    tmp_path: Path, policy: str
) -> None:
    mixed = keras.dtype_policies.DTypePolicy(policy)
    model = keras.Sequential(
        [
            keras.Input((4,), name="x"),
            keras.layers.Dense(8, "relu", dtype=mixed),
            keras.layers.LayerNormalization(dtype=mixed),
            keras.layers.Dense(1, dtype=mixed),
        ]
    )
    optimizer = keras.optimizers.Adam()
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, "mse")
    callback = PublishCallback(tmp_path, every_steps=1, on_error="raise")
    model.fit(X, Y, batch_size=8, epochs=5, verbose=0, callbacks=[callback])
    assert latest(tmp_path).step == int(model.optimizer.iterations.numpy())
    found = values(tmp_path, latest(tmp_path))
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}
    reader = tf.train.load_checkpoint(str(tmp_path))
    assert len(found) == len(model.weights)
    by_bytes = sorted(array.tobytes() for array in found.values())
    assert by_bytes == sorted(weight.numpy().tobytes() for weight in model.weights)
    assert set(found) < set(reader.get_variable_to_shape_map())
    found_answer, expected = answer(tmp_path), model(X, training=False)
    assert found_answer.dtype == expected.dtype
    tolerance = 2e-2 if policy == "mixed_bfloat16" else 2e-3
    np.testing.assert_allclose(tf.cast(found_answer, tf.float32), tf.cast(expected, tf.float32), tolerance, tolerance)
