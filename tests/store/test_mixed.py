"""Stores that we and TensorFlow both write to and both read: what is listed, what goes, and what is served."""

from __future__ import annotations

import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import CorruptCheckpointError
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.support import published
from tests.support.published import ask, follower_of
from tests.support.written import names, publish, tensors, version

VALUE = "weights/.ATTRIBUTES/VARIABLE_VALUE"


def listed(path: Path) -> list[str]:
    """All whole versions; that the latest of them is TensorFlow's latest too."""
    store = Store(path)
    latest = store.latest()
    assert latest is not None
    assert tf.train.latest_checkpoint(str(path)) == str(store.prefix(latest))
    for one in store.versions():
        opened = store.open(one)
        opened.verify(opened.entries)
    return [one.prefix for one in store.versions()]


def checkpoint() -> tf.train.Checkpoint:
    return tf.train.Checkpoint(weights=tf.Variable([1.0, 2.0]))


def test_a_manager_and_a_publisher_take_turns_and_neither_takes_the_others_away(tmp_path: Path) -> None:
    saved = checkpoint()
    for turn in range(1, 6):
        manager = tf.train.CheckpointManager(saved, str(tmp_path), max_to_keep=2, checkpoint_name="theirs")
        manager.save(turn * 10)
        publish(tmp_path, turn * 10 + 5, keep=2)
    found = listed(tmp_path)
    assert [name for name in found if name.startswith("ckpt")] == ["ckpt-45", "ckpt-55"]
    assert [name for name in found if name.startswith("theirs")][-1] == "theirs-50"
    assert {name.split(".")[0] for name in names(tmp_path, spares=False) if name.startswith("ckpt")} == {
        "ckpt-45",
        "ckpt-55",
    }


def test_a_checkpoint_of_tensorflow_over_one_of_ours_is_never_served_as_ours_and_never_removed(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    checkpoint().save(str(tmp_path / "ckpt"))  # ckpt-1 again
    store = Store(tmp_path)
    with pytest.raises(CorruptCheckpointError, match=r"ckpt-1\.json: expected the record of the parameters in ckpt-1"):
        store.open(store.find(1))
    publish(tmp_path, 2, 3, 4, keep=1)
    assert [one.number for one in store.versions()] == [1, 4]
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt-1"))
    assert reader.get_tensor(VALUE).tolist() == [1.0, 2.0]


def test_our_next_version_takes_no_name_of_a_checkpoint_that_nobody_lists(tmp_path: Path) -> None:
    tf.train.Checkpoint(weights=tf.Variable(1.0)).write(str(tmp_path / "ckpt-7"))
    with StoreWriter(tmp_path) as writer:
        assert writer.next_number(7) == 8


def test_an_emptied_state_file_costs_no_version_and_no_number(tmp_path: Path) -> None:
    publish(tmp_path, 5, 6, 7)
    for content in ("", "all_model_checkpoint_paths: 'ckpt-5'"):
        (tmp_path / "checkpoint").write_text(content)
        assert Store(tmp_path).latest() is None
        with StoreWriter(tmp_path) as writer:
            number = writer.next_number(0)
            writer.commit(version(number), tensors(number))
    assert listed(tmp_path) == ["ckpt-5", "ckpt-6", "ckpt-7", "ckpt-8", "ckpt-9"]


def test_what_is_left_of_a_version_without_its_index_is_cleared_away(tmp_path: Path) -> None:
    publish(tmp_path, 5, 6)
    os.truncate(tmp_path / "checkpoint", 0)
    (tmp_path / "ckpt-5.index").unlink()
    StoreWriter(tmp_path).close()
    assert {name.split(".")[0] for name in names(tmp_path, spares=False)} == {"ckpt-6"}


def test_what_only_looks_like_a_record_is_left_alone(tmp_path: Path) -> None:
    publish(tmp_path, 5)
    os.truncate(tmp_path / "checkpoint", 0)
    strangers = {"ckpt-1.json": b"{}", "ckpt-best.json": (tmp_path / "ckpt-5.json").read_bytes(), "notes.json": b"[]"}
    for name, content in strangers.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "ckpt-2.json")
    publish(tmp_path, 6, keep=1)
    assert listed(tmp_path) == ["ckpt-6"]
    assert {name: (tmp_path / name).read_bytes() for name in strangers} == strangers


def test_a_follower_goes_on_with_ours_while_tensorflow_saves_what_has_no_graph(tmp_path: Path) -> None:
    publisher = published.Publisher(tmp_path)
    follower = follower_of(tmp_path)
    publisher.publish(10)
    follower.run_once()
    held = ask(follower)
    assert held[1] == 10
    checkpoint().save(str(tmp_path / "theirs"))
    follower.run_once()
    assert ask(follower) == held
    publisher.publish(20)
    follower.run_once()
    assert ask(follower)[1] == 20
    publisher.close()
    follower.close()


def test_a_follower_of_ours_keeps_what_it_maps_when_tensorflow_writes_over_it(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    store = Store(tmp_path)
    held = store.open(store.find(1))
    for _ in range(3):
        tf.train.Checkpoint(weights=tf.Variable(np.ones(5000))).write(str(tmp_path / "ckpt-1"))
        held.verify(held.entries)
    assert np.array_equal(held.array("kernel"), tensors(1)["kernel"])


def test_a_checkpoint_without_a_number_is_version_0(tmp_path: Path) -> None:
    tf.train.Checkpoint(weights=tf.Variable(1.0)).write(str(tmp_path / "weights"))
    tf.train.Checkpoint(weights=tf.Variable(1.0)).write(str(tmp_path / "big-99999999999999999999"))
    for name in ("weights", "big-99999999999999999999"):
        tf.compat.v1.train.update_checkpoint_state(str(tmp_path), name)
        latest = Store(tmp_path).latest()
        assert latest is not None
        assert (latest.number, latest.prefix) == (0, name)


def test_a_directory_that_was_moved_is_still_a_store(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    tf.train.Checkpoint(weights=tf.Variable(1.0)).write(str(old / "ckpt-5"))
    tf.compat.v1.train.update_checkpoint_state(str(old), str(old / "ckpt-5"))
    (old / "checkpoint").write_text(f'model_checkpoint_path: "{old}/ckpt-5"')
    old.rename(new)
    latest = Store(new).latest()
    assert latest is not None
    assert latest.prefix == "ckpt-5"


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


def published_again(store: Path, model: keras.Model | tf.Module, trained: tf.Variable) -> int:
    """Publish four versions between which one variable changes; returns how many data files the last one has."""
    with Publisher(store, model, schedule=PublishSchedule(every_steps=1), keep=2) as publisher:
        for step in range(1, 5):
            trained.assign_add(tf.ones_like(trained))
            publisher.publish(step, wait=True)
    return len(list(store.glob("ckpt-4.data-*")))


def test_checkpoint_reads_a_published_module_and_consumes_all_of_it(tmp_path: Path) -> None:
    model, other = Affine(1.0), Affine(9.0)
    assert published_again(tmp_path, model, model.scale) == 2
    latest = tf.train.latest_checkpoint(str(tmp_path))
    assert latest == str(tmp_path / "ckpt-4")
    tf.train.Checkpoint(other).read(latest).assert_consumed()
    np.testing.assert_array_equal(other.scale.numpy(), model.scale.numpy())
    np.testing.assert_array_equal(other.frozen.numpy(), model.frozen.numpy())


@pytest.mark.parametrize("compiled", [True, False])
def test_checkpoint_reads_a_published_keras_model_and_consumes_all_of_it(tmp_path: Path, compiled: bool) -> None:
    model, other = network(1, compiled=compiled), network(2, compiled=compiled)
    published_again(tmp_path, model, model.layers[-1].kernel.value)
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
