"""Stock TensorFlow reads every published version, also those that share data files with the version before."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.support.written import version


class Affine(tf.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.fill((600, 700), scale))
        self.frozen = tf.Variable(tf.fill((700, 600), scale))

    @tf.function(input_signature=[tf.TensorSpec((None, 600), tf.float32)])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x @ self.scale @ self.frozen


def network(seed: int, *, compiled: bool) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(900, activation="relu"), keras.layers.Dense(800), keras.layers.Dense(1)]
    )
    if compiled:
        model.compile("adam", "mse")
    return model


def published(store: Path, model: keras.Model | tf.Module, trained: tf.Variable) -> int:
    """Publish four versions between which one variable changes; returns how many data files the last one has."""
    with Publisher(store, model, schedule=PublishSchedule(every_steps=1), keep=2) as publisher:
        for step in range(1, 5):
            trained.assign_add(tf.ones_like(trained))
            publisher.publish(step, wait=True)
    return len(list(store.glob("ckpt-4.data-*")))


def test_checkpoint_reads_a_published_module_and_consumes_all_of_it(tmp_path: Path) -> None:
    model, other = Affine(1.0), Affine(9.0)
    assert published(tmp_path, model, model.scale) == 2
    latest = tf.train.latest_checkpoint(str(tmp_path))
    assert latest == str(tmp_path / "ckpt-4")
    tf.train.Checkpoint(other).read(latest).assert_consumed()
    np.testing.assert_array_equal(other.scale.numpy(), model.scale.numpy())
    np.testing.assert_array_equal(other.frozen.numpy(), model.frozen.numpy())


@pytest.mark.parametrize("compiled", [True, False])
def test_checkpoint_reads_a_published_keras_model_and_consumes_all_of_it(tmp_path: Path, compiled: bool) -> None:
    model, other = network(1, compiled=compiled), network(2, compiled=compiled)
    published(tmp_path, model, model.layers[-1].kernel.value)
    tf.train.Checkpoint(other).read(tf.train.latest_checkpoint(str(tmp_path))).assert_consumed()
    for mine, theirs in zip(other.weights, model.weights, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_saver_restores_a_version_whose_parameters_are_named_as_its_variables(tmp_path: Path) -> None:
    frozen = np.arange(500_000, dtype=np.float32)
    with StoreWriter(tmp_path, keep=2) as writer:
        for number in range(1, 5):
            kernel = np.full((700, 800), number, np.float32)
            writer.commit(version(number), {"layer/frozen": frozen, "layer/kernel": kernel})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        first = tf.compat.v1.get_variable("layer/frozen", frozen.shape)
        second = tf.compat.v1.get_variable("layer/kernel", (700, 800))
        saver = tf.compat.v1.train.Saver()
        for number in (3, 4):
            saver.restore(session, str(Store(tmp_path).prefix(Store(tmp_path).find(number))))
            np.testing.assert_array_equal(session.run(first), frozen)
            assert set(np.unique(session.run(second))) == {number}
