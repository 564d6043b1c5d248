"""Models that draw random numbers draw fresh ones for each call and row, and keep no state between calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.graphs.capturing import capture
from paramsync.inference import batchable
from tests.support.captured import answers


@keras.saving.register_keras_serializable("tests")
class Sampling(keras.layers.Layer):
    """The sampling layer of Keras' example of a variational autoencoder."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs: Any) -> Any:
        mean, spread = inputs
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seed_generator)
        return mean + keras.ops.exp(0.5 * spread) * noise


def encoder() -> keras.Model:
    x = keras.Input((4,), name="x")
    mean, spread = keras.layers.Dense(3)(x), keras.layers.Dense(3, kernel_initializer="zeros")(x)
    return keras.Model(x, {"mean": mean, "spread": spread, "z": Sampling()([mean, spread])})


LAYERS = keras.layers
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def test_a_sampling_layer_draws_other_numbers_for_each_call_and_row() -> None:
    model = encoder()
    captured = capture(model)
    assert captured.graph.stochastic == ("NonDeterministicInts",)
    assert len(captured.graph.parameters) == len(model.trainable_weights) == 4
    many = np.broadcast_to(X[:1], (20_000, 4))
    first, second = (answers(captured, {"x": many}) for _ in range(2))
    expected = model(X)
    np.testing.assert_allclose(first["mean"][:1], expected["mean"][:1], rtol=1e-5)
    noise = [one["z"] - one["mean"] for one in (first, second)]
    together = np.stack([*noise[0].T, *noise[1].T])
    np.testing.assert_allclose(np.cov(together), np.eye(6), atol=0.05)  # rows, columns and calls know nothing of others
    np.testing.assert_allclose(together.mean(1), 0, atol=0.05)


def test_each_turn_of_a_loop_and_each_branch_draws_anew() -> None:
    generator = keras.random.SeedGenerator(1)

    def step(at: Any, found: Any) -> Any:
        drawn = tf.cond(at % 2 > 0, lambda: keras.random.uniform((), seed=generator), lambda: tf.constant(-1.0))
        return at + 1, found.write(at, drawn)

    @tf.function(input_signature=[tf.TensorSpec((), tf.int32, name="n")], autograph=False)
    def draw(n: Any) -> Any:
        return tf.while_loop(lambda at, _: at < n, step, (0, tf.TensorArray(tf.float32, n)))[1].stack()

    found = answers(capture(draw), {"n": np.int32(20)})["outputs"]
    assert (found[::2] == -1).all()
    assert len(set(found[1::2])) == 10


def test_a_generator_of_tensorflow_draws_other_numbers_each_time() -> None:
    class Noise(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = tf.random.Generator.from_seed(7)

        @tf.function(input_signature=[tf.TensorSpec((None,), name="x")])
        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return x + self.generator.normal(tf.shape(x)) + self.generator.normal(tf.shape(x))

    captured = capture(Noise())
    found = [answers(captured, {"x": np.zeros(20_000, np.float32)})["outputs"] for _ in range(2)]
    np.testing.assert_allclose(np.cov(np.stack(found)), 2 * np.eye(2), atol=0.1)


def test_what_keras_exports_draws_too_and_is_never_batched(tmp_path: Path) -> None:
    encoder().export(str(tmp_path / "1"), verbose=False)
    follower = Follower(Replica("m", tmp_path))
    follower.run_once()
    resident = follower.replica.serving()
    (found, _), (other, _) = (follower.replica.predict({"x": X}) for _ in range(2))
    assert not np.array_equal(found["z"], other["z"])
    np.testing.assert_array_equal(found["mean"], other["mean"])
    batchable.examine(resident)
    assert not batchable.of(resident.graph, "serving_default").together


def functional(layer: keras.layers.Layer, shape: tuple[int, ...], **how: Any) -> keras.Model:
    x = keras.Input(shape, name="x")
    return keras.Model(x, layer(x, **how))


class Holding(keras.Model):
    """A subclassed model around a functional one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = functional(functional(LAYERS.Dropout(0.5), (8,), training=True), (8,))

    def call(self, x: Any) -> Any:
        return self.net(x)


DRAWING = {
    "the layer": lambda: functional(LAYERS.Dropout(0.5), (8,), training=True),
    "the model as a whole": lambda: functional(functional(LAYERS.Dropout(0.5), (8,)), (8,), training=True),
    "a layer within a subclassed model": Holding,
}


@pytest.mark.parametrize("make", DRAWING.values(), ids=DRAWING)
def test_a_layer_of_a_functional_model_that_was_called_with_training_draws(make: Callable[[], keras.Model]) -> None:
    model = make()
    captured = capture(model, inputs=None if model.built else tf.TensorSpec((None, 8), name="x"))
    assert captured.graph.stochastic == ("NonDeterministicInts",)
    ((name, spec),) = captured.graph.signatures["serving_default"].inputs.items()
    ones = np.ones([5 if size is None else size for size in spec.shape or ()], np.float32)
    (one,), (other,) = (answers(captured, {name: ones}).values() for _ in range(2))
    assert not np.array_equal(one, other)
    assert "call" not in vars(model)


def test_what_trains_unless_told_otherwise_predicts() -> None:
    x = keras.Input((8, 8, 3), name="x")
    augmented = keras.Sequential([LAYERS.RandomFlip(), LAYERS.RandomBrightness(0.5)])(LAYERS.RandomContrast(0.5)(x))
    model = keras.Model(x, {"augmented": augmented, "dropped": LAYERS.Dropout(0.5)(x, training=True)})
    captured = capture(model)
    images = np.random.default_rng(0).uniform(0, 255, (2, 8, 8, 3)).astype(np.float32)
    found = answers(captured, {"x": images})
    np.testing.assert_array_equal(found["augmented"], images)
    assert (found["dropped"] == 0).any()


def test_batch_normalization_that_was_called_with_training_is_refused() -> None:
    with pytest.raises(GraphError, match=r"changes variable .* whenever it predicts"):
        capture(functional(LAYERS.BatchNormalization(), (8,), training=True))
