"""What TensorFlow saves to a directory is a store, and either can go on where the other ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.support.whole import assert_serves
from tests.support.written import changing, publish_changing, version


def test_a_directory_of_a_checkpoint_manager_is_a_store(tmp_path: Path) -> None:
    variable = tf.Variable([1.0, 2.0])
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(weights=variable), str(tmp_path), max_to_keep=2)
    for number in (1, 2, 3):
        variable.assign([number, number])
        manager.save(checkpoint_number=number)
    store = Store(tmp_path)
    assert [one.number for one in store.versions()] == [2, 3]
    latest = store.latest()
    assert latest == store.find(3)
    assert latest is not None
    written = (tmp_path / "ckpt-3.index").stat().st_mtime
    assert (latest.step, latest.graph, latest.prefix) == (3, "", "ckpt-3")
    assert (latest.step_done_at, latest.snapshot_at, latest.committed_at) == (written, written, written)
    opened = store.open(latest)
    opened.verify(opened.entries)
    assert opened.array("weights/.ATTRIBUTES/VARIABLE_VALUE").tolist() == [3.0, 3.0]


def test_a_directory_of_a_v1_saver_is_a_store(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        kernel = tf.compat.v1.get_variable("kernel", initializer=np.array([1, 2], np.float32))
        session.run(kernel.initializer)
        saver = tf.compat.v1.train.Saver([kernel])
        for step in (10, 20):
            saver.save(session, str(tmp_path / "model"), global_step=step)
    store = Store(tmp_path)
    assert [(one.number, one.prefix) for one in store.versions()] == [(10, "model-10"), (20, "model-20")]
    assert store.open(store.find(20)).array("kernel").tolist() == [1.0, 2.0]


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


def test_a_publisher_continues_what_tensorflow_began_and_removes_nothing_of_it(tmp_path: Path) -> None:
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(weights=tf.Variable(1.0)), str(tmp_path), max_to_keep=None, checkpoint_name="theirs"
    )
    for _ in range(3):
        manager.save()
    with StoreWriter(tmp_path, keep=1) as writer:
        assert writer.next_number(0) == 4
        writer.commit(version(4), changing(4))
        writer.commit(version(5), changing(5))
    assert [one.prefix for one in Store(tmp_path).versions()] == ["theirs-1", "theirs-2", "theirs-3", "ckpt-5"]
    assert_serves(tmp_path, 5)


def test_checkpoint_managers_can_continue_what_we_began(tmp_path: Path) -> None:
    publish_changing(tmp_path, 1, 2)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(), str(tmp_path), max_to_keep=1)
    assert manager.latest_checkpoint == str(tmp_path / "ckpt-2")
    manager.save(checkpoint_number=3)
    assert [one.number for one in Store(tmp_path).versions()] == [3]
    publish_changing(tmp_path, 4)  # which lists its own again, so that they go when their time comes
    assert [one.number for one in Store(tmp_path).versions()] == [1, 2, 3, 4]
    publish_changing(tmp_path, 5, keep=1)
    assert [one.number for one in Store(tmp_path).versions()] == [3, 5]
