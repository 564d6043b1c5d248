"""Stores that we and TensorFlow both write to: what is listed, what goes, which number is next, what is served."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import CorruptCheckpointError
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
