"""The ways people train, each with a publisher in it: what is published are the values of one step, to the bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.dtypes import Array
from paramsync.following.replica import Replica
from paramsync.keras import PublishCallback
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.store import Store
from paramsync.tensorbundle.index import OBJECT_GRAPH
from paramsync.version import Version
from tests.support.checkpoints import assert_same
from tests.support.mirrored import STEPS, Counters, network
from tests.support.programs import ROOT

EVERY_STEP = PublishSchedule(every_steps=1)
X = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)

Compile = Callable[[Callable[[], Any]], Callable[[], Any]]
STYLES: dict[str, Compile] = {
    "eager": lambda step: step,
    "function": tf.function,
    "compiled": lambda step: tf.function(step, jit_compile=True),
}
styles = pytest.mark.parametrize("compiled", STYLES.values(), ids=STYLES.keys())


def values(store: Path, version: Version) -> dict[str, Array]:
    bundle = Store(store).open(version)
    bundle.verify(bundle.entries)
    return {name: bundle.array(name) for name in bundle.entries if name != OBJECT_GRAPH}


def latest(store: Path) -> Version:
    found = Store(store).latest()
    assert found is not None
    return found


def answer(store: Path) -> Any:
    """What an inferencer's copy of the latest version computes of X."""
    replica = Replica("model", Store(store))
    (output,) = replica.restore(latest(store)).predict({"x": X}).values()
    return output


def add_rows(variable: tf.Variable) -> None:
    """What an optimizer does to an embedding, here with all its rows."""
    rows = tf.range(variable.shape[0])
    variable.scatter_add(tf.IndexedSlices(tf.ones_like(variable), rows))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiled", "sparse"),
    [*((one, False) for one in STYLES.values()), (STYLES["eager"], True), (STYLES["function"], True)],
    ids=[*STYLES, "eager, sparse", "function, sparse"],
)
def test_a_loop_at_full_speed_publishes_nothing_but_whole_steps(
    tmp_path: Path, compiled: Compile, sparse: bool
) -> None:
    """All variables hold the step's number, and are updated again while the background is still writing them."""
    model = Counters()

    def step() -> None:
        for at, one in enumerate(model.many):
            if sparse and at % 2:
                add_rows(one)
            else:
                one.assign_add(tf.ones_like(one))

    train = compiled(step)
    steps = 0
    seen: list[tuple[int, set[float]]] = []

    def look(version: Version) -> None:
        found = values(tmp_path, version)
        assert len(found) == len(model.many)
        seen.append((version.step, {float(one) for array in found.values() for one in np.unique(array)}))

    with Publisher(tmp_path, model, schedule=EVERY_STEP) as publisher:
        publisher.subscribe(look)
        while steps < 2000 or (len(seen) <= 20 and steps < 100_000):  # most are skipped where a machine is busy
            steps += 1
            train()
            publisher.publish_if_due(steps)
        publisher.finish(steps)
        status = publisher.status()
    assert status.last_error is None
    assert status.publishes + status.skipped == steps
    assert len(seen) == status.publishes > 20
    assert seen == [(number, {float(number)}) for number, _ in seen]


@styles
def test_every_step_of_a_gradient_tape_loop_is_published_as_it_was(tmp_path: Path, compiled: Compile) -> None:
    model, optimizer = network(), keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    x, y = tf.constant(X), tf.constant(Y)

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    train = compiled(step)
    copy = network()
    checked: list[int] = []
    with Publisher(tmp_path, model, schedule=EVERY_STEP) as publisher:
        for number in range(1, 21):
            loss = train()
            version = publisher.publish(number, metrics={"loss": loss})
            expected = [weight.numpy() for weight in model.weights]
            train()  # while it is written
            assert publisher.flush(60)
            tf.train.Checkpoint(copy).read(str(tmp_path / version.prefix)).expect_partial()
            for found, wanted in zip(copy.weights, expected, strict=True):
                assert_same(found.numpy(), wanted)
            assert latest(tmp_path).metrics == {"loss": float(loss)}
            checked.append(number)
        publisher.finish(20)
    assert len(checked) == 20
    np.testing.assert_allclose(answer(tmp_path), model(X, training=False), rtol=1e-5, atol=1e-6)


def mirrored(what: str, store: Path) -> Any:
    """What a training process with two replicas says: devices can be divided before TensorFlow starts only."""
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
def test_a_mirrored_fit_is_read_into_a_model_of_one_device(tmp_path: Path) -> None:
    weights = mirrored("fit", tmp_path)["weights"]
    assert latest(tmp_path).step == 8
    copy = network()
    tf.train.Checkpoint(copy).read(tf.train.latest_checkpoint(tmp_path)).expect_partial()
    for found, wanted in zip(copy.weights, weights, strict=True):
        assert_same(found.numpy(), np.array(wanted, np.float32))
    np.testing.assert_allclose(answer(tmp_path), copy(X, training=False), rtol=1e-5, atol=1e-6)


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


def test_layers_frozen_are_linked_and_layers_unfrozen_are_published_again(tmp_path: Path) -> None:
    body = keras.layers.Dense(512, "relu", name="body")
    model = keras.Sequential([keras.Input((4,), name="x"), body, keras.layers.Dense(1, name="head")])
    callback = PublishCallback(tmp_path, every_steps=1, on_error="raise")
    copy = keras.models.clone_model(model)

    def fit(*, train_body: bool) -> Version:
        before = body.kernel.numpy()
        body.trainable = train_body
        model.compile("adam", "mse")  # as Keras asks for after a change of `trainable`
        model.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[callback])
        assert np.array_equal(body.kernel.numpy(), before) is not train_body
        tf.train.Checkpoint(copy).read(tf.train.latest_checkpoint(tmp_path)).expect_partial()
        for found, wanted in zip(copy.weights, model.weights, strict=True):
            assert_same(found.numpy(), wanted.numpy())
        return latest(tmp_path)

    body_bytes = body.kernel.numpy().nbytes + body.bias.numpy().nbytes
    for train_body in (True, False, True, False):
        version = fit(train_body=train_body)
        assert (version.bytes_written > body_bytes) is train_body


def test_a_layer_unfrozen_in_the_middle_of_a_loop_is_published_from_that_step_on(tmp_path: Path) -> None:
    model = network()
    frozen, *_ = model.layers
    optimizer = keras.optimizers.SGD(0.01)
    with Publisher(tmp_path, model, schedule=EVERY_STEP) as publisher:
        for number in range(1, 31):
            frozen.trainable = 10 < number <= 20
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(X, training=True) - Y))
            trained = model.trainable_variables
            for variable, gradient in zip(trained, tape.gradient(loss, trained), strict=True):
                variable.assign_sub(optimizer.learning_rate * gradient)
            version = publisher.publish(number, wait=True)
            copy = network()
            tf.train.Checkpoint(copy).read(str(tmp_path / version.prefix)).expect_partial()
            for found, wanted in zip(copy.weights, model.weights, strict=True):
                assert_same(found.numpy(), wanted.numpy())
