"""Stores written by stock TensorFlow in several ways, and a follower. The model's answer tells the version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from tests.support.programs import eventually

v1 = tf.compat.v1

X = np.arange(12, dtype=np.float32).reshape(2, 6)


@contextmanager
def following(path: Path, **told: Any) -> Iterator[Follower]:
    """A running follower that does not poll: it finds versions only through its watch."""
    with Follower(Replica("m", path, **told), poll_seconds=3600) as follower:
        yield follower


def serves(follower: Follower, number: int) -> None:
    """Wait until a follower serves this version."""

    def look() -> bool:
        status = follower.status()
        return status.serving is not None and status.serving.number == number

    eventually(look, lambda: f"version {number}: {follower.status()}")


def quarantined(follower: Follower, number: int) -> str:
    """Wait until a version is in quarantine; returns the reason."""
    found = eventually(
        lambda: follower.status().quarantine_of(number), lambda: f"a quarantine of {number}: {follower.status()}"
    )
    return found.reason


def answer(follower: Follower, **inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the only output of an answer to `inputs`, by default to `X`."""
    (name,) = follower.replica.serving().graph.signatures["serving_default"].inputs
    outputs, _ = follower.replica.predict(inputs or {name: X})
    (found,) = outputs.values()
    return np.asarray(found)


def digits() -> keras.Model:
    """A model trained for a step: its checkpoint also has an optimizer, which has shorter paths to the variables."""
    layers = [keras.Input((6,)), keras.layers.Dense(5), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    train(model)
    return model


def train(model: keras.Model) -> None:
    chance = np.random.default_rng(0)
    model.fit(chance.random((8, 6)), chance.random((8, 2)), batch_size=4, verbose=0)


class Scaled(tf.Module):
    """A module without Keras: its variable has an ordinary name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.zeros([6]))

    @tf.function(input_signature=[tf.TensorSpec([None, 6], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * self.weight}

    def fill(self, number: float) -> None:
        self.weight.assign(tf.fill([6], float(number)))


def saved_by_v1(directory: Path, number: float) -> None:
    """Export y = number * x with v1's SavedModelBuilder."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 6], name="x")
        weight = v1.get_variable("weight", initializer=np.float32(number))
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(directory), {"x": x}, {"y": x * weight})


def saved_by_v2(directory: Path, number: float) -> None:
    scaled = Scaled()
    scaled.fill(number)
    tf.saved_model.save(scaled, str(directory), signatures=scaled.__call__)


def exported(directory: Path, number: float) -> None:
    """Export y = number * x with Keras."""
    inputs = keras.Input((6,), name="x")
    model = keras.Model(inputs, {"y": keras.layers.Rescaling(1.0)(keras.layers.EinsumDense("ab,b->ab", (6,))(inputs))})
    model.set_weights([np.full(6, number, np.float32)])
    model.export(str(directory), verbose=False)


def saved_with_words(directory: Path, words: Path) -> None:
    """Save a model whose table is filled from a file among its assets."""
    line = tf.lookup.TextFileIndex

    class Ids(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.lookup.StaticVocabularyTable(
                tf.lookup.TextFileInitializer(str(words), tf.string, line.WHOLE_LINE, tf.int64, line.LINE_NUMBER),
                1,
            )

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
        def __call__(self, word: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"id": self.table.lookup(word)}

    module = Ids()
    tf.saved_model.save(module, str(directory), signatures=module.__call__)


WRITERS: list[Callable[[Path, float], None]] = [saved_by_v1, saved_by_v2, exported]
"""Functions that write a SavedModel that multiplies by a number."""
