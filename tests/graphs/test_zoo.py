"""Models of every common kind: the captured graph, read from its file, answers bit for bit like the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.checkpoint.reader import Bundle
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.specs import DEFAULT_SIGNATURE

layers = keras.layers
WORDS = ["to", "be", "or", "not"]


def convolution() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            *(layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D()),
            *(layers.DepthwiseConv2D(3), layers.BatchNormalization(), layers.SeparableConv2D(8, 3, strides=2)),
            *(layers.GlobalAveragePooling2D(), layers.Dense(10, "softmax")),
        ]
    )


def recurrent(layer: Callable[[], Any]) -> Callable[[], keras.Model]:
    return lambda: keras.Sequential([keras.Input((None, 5)), layer(), layers.Dense(2)])


def attention() -> keras.Model:
    sequence = keras.Input((9, 16))
    attended = layers.MultiHeadAttention(4, 8)(sequence, sequence, use_causal_mask=True)
    joined = layers.LayerNormalization()(layers.Add()([sequence, layers.Dropout(0.1)(attended)]))
    grouped = layers.GroupQueryAttention(8, 4, 2)(joined, joined)
    return keras.Model(sequence, layers.Dense(3)(layers.GlobalMaxPooling1D()(grouped)))


def text_classifier() -> keras.Model:
    text = keras.Input((), dtype="string", name="text")
    ids = layers.TextVectorization(vocabulary=WORDS, output_sequence_length=6)(text)
    counts = layers.TextVectorization(vocabulary=WORDS, output_mode="count", ngrams=2)(text)
    embedded = layers.GlobalAveragePooling1D()(layers.Embedding(8, 4)(ids))
    return keras.Model(text, layers.Dense(3, "softmax")(layers.Concatenate()([embedded, counts])))


def many_in_many_out() -> keras.Model:
    image, numbers = keras.Input((8, 8, 3), name="image"), keras.Input((5,), name="numbers")
    seen = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3, activation="swish")(image))
    joined = layers.Concatenate()([seen, layers.Dense(4, "tanh")(numbers)])
    return keras.Model(
        {"image": image, "numbers": numbers},
        {"kind": layers.Dense(3, "softmax")(joined), "size": layers.Dense(1)(joined), "joined": joined * 2.0},
    )


class Residual(keras.Model):
    """A subclassed model: layers in a list, a variable of its own, a loop and a branch on values."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [layers.Dense(6, "relu") for _ in range(3)]
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.5)
        self.scale = self.add_weight(shape=(6,), initializer="random_normal", name="scale")

    def call(self, x: Any, training: bool = False) -> Any:
        for block in self.blocks:
            x = x + self.drop(block(x), training=training)
        x = self.norm(x, training=training) * self.scale
        x = keras.ops.while_loop(lambda y: keras.ops.max(keras.ops.abs(y)) > 1.0, lambda y: (y / 2.0,), (x,))[0]
        return keras.ops.cond(keras.ops.sum(x) > 0.0, lambda: x, lambda: -x)


def subclassed() -> keras.Model:
    model = Residual()
    model(tf.ones((1, 6)))
    return model


MODELS: dict[str, Callable[[], keras.Model]] = {
    "convolution": convolution,
    "lstm": recurrent(lambda: layers.LSTM(6)),
    "gru": recurrent(lambda: layers.GRU(6, return_sequences=True)),
    "attention": attention,
    "text classifier": text_classifier,
    "many in many out": many_in_many_out,
    "subclassed": subclassed,
}


def disturbed(model: keras.Model) -> keras.Model:
    """Give random values to variables that begin as zeros or ones, which would hide a mistake."""
    random = np.random.default_rng(1)
    for variable in model.weights:
        if variable.path.endswith(("bias", "beta", "gamma", "moving_mean", "moving_variance")):
            variable.assign(random.uniform(0.5, 1.5, variable.shape))
    return model


def drawn(graph: Graph, rows: int) -> dict[str, tf.Tensor]:
    """Inputs that fit."""
    random = np.random.default_rng(rows)
    inputs = {}
    for name, spec in graph.signatures[DEFAULT_SIGNATURE].inputs.items():
        sizes = spec.shape or ()
        shape = [rows if at == 0 else size or 5 for at, size in enumerate(sizes)]
        if spec.dtype == "string":
            inputs[name] = tf.constant(random.choice([*WORDS, "to be", "else"], shape))
        elif spec.dtype.startswith("int"):
            inputs[name] = tf.cast(random.integers(0, 12, shape), spec.dtype)
        else:
            inputs[name] = tf.cast(random.normal(size=shape), spec.dtype)
    return inputs


@pytest.fixture
def unoptimised() -> Iterator[None]:
    """Without TensorFlow's graph optimiser, which merges operations and so changes the last bits of results."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.mark.usefixtures("unoptimised")
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_a_captured_and_an_exported_model_answer_bit_for_bit_like_the_model(
    build: Callable[[], keras.Model], tmp_path: Path
) -> None:
    model = disturbed(build())
    captured = capture(model)
    graph = Graph.from_bytes(captured.graph.to_bytes())
    assert graph.digest == captured.graph.digest
    model.export(tmp_path, verbose=False)
    exported = capture(tmp_path).graph
    bundle = Bundle.open(tmp_path / "variables" / "variables")
    saved = tf.saved_model.load(tmp_path).signatures[DEFAULT_SIGNATURE]
    for rows in (1, 7):
        inputs = drawn(graph, rows)
        given = list(inputs.values())
        nested = isinstance(getattr(model, "input", None), dict)
        expected = model(inputs if nested else given[0] if len(given) == 1 else given)
        found = graph([variable.read_value() for variable in captured.variables], inputs)
        for name, value in zip(found, tf.nest.flatten(expected), strict=True):
            np.testing.assert_array_equal(found[name].numpy(), value.numpy(), err_msg=name)
        inputs = drawn(exported, rows)
        found = exported([tf.constant(bundle.array(one.name)) for one in exported.parameters], inputs)
        expected = saved(**inputs)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name].numpy(), value.numpy(), err_msg=name)
