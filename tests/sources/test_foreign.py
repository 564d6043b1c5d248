"""Stores that TensorFlow and Keras write: what they hold is read bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from paramsync.store.store import Store
from tests.support.written import read

v1 = tf.compat.v1


def assert_same_as_tensorflow(directory: Path, numbers: list[int]) -> None:
    """All versions that are there have the names, dtypes, shapes and bits that TensorFlow reads."""
    store = Store(directory)
    assert [version.number for version in store.versions()] == numbers
    latest = store.latest()
    assert latest is not None
    assert tf.train.latest_checkpoint(str(directory)) == str(store.prefix(latest))
    for version in store.versions():
        found = read(store, version)
        reader = tf.train.load_checkpoint(str(store.prefix(version)))
        types = reader.get_variable_to_dtype_map()
        assert set(found) == {name for name in types if types[name] != tf.variant}
        for name, array in found.items():
            expected = np.asarray(reader.get_tensor(name))
            assert array.shape == expected.shape
            if types[name] == tf.string:
                assert array.tolist() == (expected.tolist() if expected.shape else expected.item())
            else:
                assert array.dtype == np.dtype(types[name].as_numpy_dtype)
                assert array.tobytes() == expected.tobytes()


# Savers of v1 graphs --------------------------------------------------------------------------------------------------


def v1_graph() -> dict[str, Any]:
    """A partitioned embedding, batch normalization's kinds of variables, a step, words."""
    chance = v1.random_normal_initializer()
    return {
        "embedding": v1.get_variable(
            "embedding", (50, 4), initializer=chance, partitioner=v1.fixed_size_partitioner(3)
        ),
        "half": v1.get_variable("half", (7,), tf.float16, v1.ones_initializer()),
        "flags": v1.get_variable("flags", initializer=np.array([True, False])),
        "words": v1.get_variable("words", initializer=np.array([b"one", b"", b"\xff\0"], object), dtype=tf.string),
        "step": v1.train.get_or_create_global_step(),
    }


@pytest.mark.parametrize("meta", [True, False], ids=["with .meta", "without .meta"])
@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "one shard"])
def test_a_v1_savers_directory(tmp_path: Path, meta: bool, sharded: bool) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        variables = v1_graph()
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(sharded=sharded, max_to_keep=2)
        for step in (5, 10, 15):
            session.run(variables["step"].assign(step))
            saver.save(session, str(tmp_path / "model.ckpt"), global_step=step, write_meta_graph=meta)
    assert (tmp_path / "model.ckpt-15.meta").exists() is meta
    assert_same_as_tensorflow(tmp_path, [10, 15])
    latest = read(Store(tmp_path), Store(tmp_path).find(15))
    assert latest["global_step"] == 15
    assert latest["embedding"].shape == (50, 4)
    assert latest["words"].tolist() == [b"one", b"", b"\xff\0"]


def test_a_monitored_sessions_directory(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        train = v1.assign_add(v1_graph()["step"], 1)
        with v1.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_steps=2) as session:
            for _ in range(4):
                session.run(train)
    assert_same_as_tensorflow(tmp_path, [0, 2, 4])


def test_a_name_that_a_saver_uses_again_is_another_version_each_time(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", initializer=np.zeros(1000))
        saver = v1.train.Saver()
        seen = []
        for value in (1.0, 2.0):
            weights.load(np.full(1000, value), session)
            saver.save(session, str(tmp_path / "model"))
            assert_same_as_tensorflow(tmp_path, [0])
            seen.append(Store(tmp_path).latest())
    assert seen[0] != seen[1]


# Checkpoints of objects -----------------------------------------------------------------------------------------------


class Everything(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = tf.Variable(tf.random.normal((3, 4)))
        self.bfloat = tf.Variable(tf.random.normal((5,), dtype=tf.bfloat16))
        self.fractions = tf.Variable(np.array([0.5, -1.5, 448.0], ml_dtypes.float8_e4m3fn))
        self.complex = tf.Variable(tf.complex([1.0], [float("nan")]))
        self.words = tf.Variable(["a", "", "long" * 100])
        self.empty = tf.Variable(tf.zeros((0, 3)))
        self.chance = tf.random.Generator.from_seed(1)
        self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        self.table.insert(["x", "y"], tf.constant([1, 2], tf.int64))


def test_a_checkpoints_directory(tmp_path: Path) -> None:
    iterator = iter(tf.data.Dataset.range(10).shuffle(5))
    checkpoint = tf.train.Checkpoint(module=Everything(), iterator=iterator)
    for _ in range(2):
        next(iterator)
        checkpoint.save(str(tmp_path / "training"))
    assert_same_as_tensorflow(tmp_path, [2])  # TensorFlow lists no other: keeping several is for managers


def test_a_checkpoint_managers_directory(tmp_path: Path) -> None:
    module = Everything()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(module=module), str(tmp_path), max_to_keep=2)
    for number in (1, 2, 3):
        module.weights.assign_add(tf.ones((3, 4)))
        manager.save(number)
    assert_same_as_tensorflow(tmp_path, [2, 3])


def digits() -> keras.Model:
    layers = [keras.Input((6,)), keras.layers.Dense(5), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    return model


def fit(model: keras.Model, *callbacks: keras.callbacks.Callback) -> None:
    chance = np.random.default_rng(0)
    model.fit(chance.random((8, 6)), chance.random((8, 2)), epochs=3, batch_size=4, callbacks=[*callbacks], verbose=0)


def test_a_checkpoint_of_a_keras_model_and_its_optimizer(tmp_path: Path) -> None:
    model = digits()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(tmp_path), max_to_keep=None)
    saving = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: manager.save(epoch + 1))
    fit(model, saving)
    assert_same_as_tensorflow(tmp_path, [1, 2, 3])
    found = [array.tobytes() for array in read(Store(tmp_path), Store(tmp_path).find(3)).values()]
    for weight in model.get_weights():
        assert weight.tobytes() in found


keras_and_numpy = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


# Keras 3 has no format of TensorFlow's left: its callbacks insist on their own, which is not for a store to follow.
@pytest.mark.parametrize("name", ["weights", "ckpt-{epoch}", "weights.tf", "weights.index"])
def test_keras_writes_weights_in_its_own_format_only(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"must end in `\.weights\.h5`"):
        keras.callbacks.ModelCheckpoint(str(tmp_path / name), save_weights_only=True)


@keras_and_numpy
def test_what_keras_callbacks_write_is_no_version(tmp_path: Path) -> None:
    inside: list[set[str]] = []
    looking = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: inside.append(names(tmp_path)))
    fit(
        digits(),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "ckpt-{epoch}.weights.h5"), save_weights_only=True),
        keras.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False),
        looking,
    )
    assert {"ckpt-1.weights.h5", "latest.weights.h5", "training_metadata.json"} <= set.union(*inside)
    assert Store(tmp_path).latest() is None
    assert Store(tmp_path).versions() == []


@keras_and_numpy
def test_a_checkpoint_beside_files_of_keras_is_the_version(tmp_path: Path) -> None:
    model = digits()
    fit(model, keras.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False))
    tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))
    assert_same_as_tensorflow(tmp_path, [1])


def names(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}
