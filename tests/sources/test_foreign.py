"""Stores that TensorFlow and Keras write are read bit by bit; what is half there is refused, and never served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import CorruptCheckpointError, UnknownVersionError
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


def test_a_version_of_which_nothing_is_left_is_swept_away(tmp_path: Path) -> None:
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(weights=tf.Variable([1.0])), str(tmp_path), None)
    for number in (1, 2):
        manager.save(number)
    store = Store(tmp_path)
    versions = store.versions()
    for file in tmp_path.glob("ckpt-*"):
        file.unlink()
    assert store.versions() == []
    with pytest.raises(CorruptCheckpointError, match="found no such files"):
        store.latest()
    for version in versions:  # still listed: whoever sweeps has not come to say so
        with pytest.raises(UnknownVersionError, match="there are: none"):
            store.open(version)
