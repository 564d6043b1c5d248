"""A Keras model is captured only where its graph computes what the model does; where it cannot be, Keras says why."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.capturing import capture
from tests.support.captured import answers


class Wrong(keras.layers.Layer):
    """One that multiplies by what it cannot."""

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, keras.ops.ones((7, 3)))


class Undecided(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x if keras.ops.sum(x) > 0 else -x


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Wrong(), r"shape=\(None, 4\).*shape=\(7, 3\)|4 and 7"),
        (Undecided(), r"symbolic `tf.Tensor` as a Python `bool`"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_the_whole_reason_that_keras_gives_is_told_on_one_line(layer: Any, reason: str, nested: bool) -> None:
    model = keras.Sequential([layer])
    with pytest.raises(GraphError, match=reason) as refused:
        capture(keras.Sequential([model]) if nested else model, inputs=tf.TensorSpec((None, 4)))
    text = str(refused.value)
    assert "Exception encountered when calling" in text
    assert text.isprintable()
    assert "Arguments received" not in text


def over_time(*layers: keras.layers.Layer, time: int | None = None) -> keras.Model:
    x = keras.Input((time, 4), name="x")
    y = x
    for layer in layers:
        y = keras.layers.TimeDistributed(layer)(y)
    return keras.Model(x, y)


@pytest.mark.parametrize("count", [1, 2])
def test_a_graph_that_computes_another_shape_than_the_model_is_refused(count: int) -> None:
    model = over_time(*(keras.layers.Dense(2) for _ in range(count)))
    with pytest.raises(GraphError, match=r"its graph gives 'outputs' as float32 \[2, 2, 2\], the model \[2, 3, 2\]"):
        capture(model)
    assert capture(model, compare=False).graph.signatures
    assert capture(model, inputs=tf.TensorSpec((None, 5, 4))).graph.signatures


def test_with_its_time_said_the_same_model_is_captured() -> None:
    model = over_time(keras.layers.Dense(3), keras.layers.Dense(2), time=5)
    x = np.random.default_rng(0).random((2, 5, 4), np.float32)
    np.testing.assert_allclose(answers(capture(model), {"x": x})["outputs"], model(x), rtol=1e-6)


class Otherwise(keras.layers.Layer):
    """One that computes something else where it is traced."""

    def __init__(self, difference: float) -> None:
        super().__init__()
        self.difference = difference

    def call(self, x: Any) -> Any:
        return x if tf.executing_eagerly() else x * (1 + self.difference)


def test_values_that_differ_by_more_than_rounding_are_refused() -> None:
    def model(difference: float, dtype: str = "float32") -> keras.Model:
        x = keras.Input((4,), name="x", dtype=dtype)
        return keras.Model(x, {"same": x, "y": keras.layers.Activation("linear")(Otherwise(difference)(x))})

    with pytest.raises(GraphError, match=r"'y' differs from what the model gives, by up to 0\.0\d+ of 0\.\d+"):
        capture(model(0.01))
    assert capture(model(1e-6)).graph.signatures
    assert capture(model(0.01), outputs=["same"]).graph.signatures


def test_what_the_model_itself_cannot_compute_is_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    """Rows of sixteen whole squares: no size that was made up fits."""
    x = keras.Input((None,), name="x")
    model = keras.Model(x, Otherwise(1.0)(keras.layers.Reshape((17, -1))(x)))
    with caplog.at_level(logging.DEBUG, "paramsync.graphs"):
        assert capture(model).graph.signatures
    assert "was not compared" in caplog.text


def test_a_model_that_draws_random_numbers_is_not_compared() -> None:
    class Noise(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x + keras.random.normal(keras.ops.shape(x))

    assert capture(keras.Sequential([keras.Input((4,)), Noise()])).graph.stochastic


def test_inputs_of_every_kind_are_made_up() -> None:
    word, place = keras.Input((1,), dtype="string", name="word"), keras.Input((None,), dtype="int32", name="place")
    few = keras.Input((6,), sparse=True, name="few")
    looked_up = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(word)
    embedded = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(2, 3)(place))
    y = keras.layers.Concatenate()([looked_up, embedded, keras.layers.Dense(2)(few)])
    model = keras.Model({"word": word, "place": place, "few": few}, Otherwise(0.5)(y))
    with pytest.raises(GraphError, match="differs from what the model gives"):
        capture(model)


def test_a_call_that_is_compared_leaves_the_model_as_it_was() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    before = [one.numpy() for one in model.variables]
    capture(model)
    for one, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(one.numpy(), value)
