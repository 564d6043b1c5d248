"""What a writer of TensorFlow's has half there, or is just writing, is refused and never served."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import CorruptCheckpointError, UnknownVersionError
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.written import read

v1 = tf.compat.v1

VALUE = "weights/.ATTRIBUTES/VARIABLE_VALUE"
AGAIN = "again/.ATTRIBUTES/VARIABLE_VALUE"


# What is half there ---------------------------------------------------------------------------------------------------


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A store of two versions of TensorFlow's."""
    saved(tmp_path, [1.0, 2.0])
    return tmp_path


def saved(directory: Path, values: list[float]) -> None:
    checkpoint = tf.train.Checkpoint(weights=tf.Variable(values))
    manager = tf.train.CheckpointManager(checkpoint, str(directory), max_to_keep=None)
    for number in (1, 2):
        manager.save(number)


def test_an_index_without_data_is_refused(half: Path) -> None:
    (half / "ckpt-2.data-00000-of-00001").unlink()
    store = Store(half)
    with pytest.raises(CorruptCheckpointError, match=r"ckpt-2\.data.*expected a data file, found No such file"):
        store.open(store.find(2))
    assert read(store, store.find(1))[VALUE].tolist() == [1.0, 2.0]


def test_data_without_an_index_is_no_version(half: Path) -> None:
    (half / "ckpt-2.index").unlink()
    assert [version.number for version in Store(half).versions()] == [1]
    with pytest.raises(CorruptCheckpointError, match="expected the files of ckpt-2, found no such files"):
        Store(half).latest()


def test_an_index_that_is_being_filled_in_place_is_refused(half: Path) -> None:
    store = Store(half)
    version = store.find(2)
    content = (half / "ckpt-2.index").read_bytes()
    for length in range(len(content)):
        (half / "ckpt-2.index").write_bytes(content[:length])
        with pytest.raises(CorruptCheckpointError):
            store.open(version)
        (half / "ckpt-2.index").write_bytes(content[:length].ljust(len(content), b"\0"))
        with pytest.raises(CorruptCheckpointError):
            store.open(version)


def test_a_version_of_which_nothing_is_left_is_swept_away(half: Path) -> None:
    store = Store(half)
    versions = store.versions()
    for file in half.glob("ckpt-*"):
        file.unlink()
    assert store.versions() == []
    with pytest.raises(CorruptCheckpointError, match="found no such files"):
        store.latest()
    for version in versions:  # still listed: whoever sweeps has not come to say so
        with pytest.raises(UnknownVersionError, match="there are: none"):
            store.open(version)


def test_data_of_another_save_under_the_same_name_is_refused(half: Path) -> None:
    saved(half / "other", [3.0, 4.0])
    shutil.move(half / "other" / "ckpt-2.data-00000-of-00001", half / "ckpt-2.data-00000-of-00001")
    store = Store(half)
    with pytest.raises(CorruptCheckpointError, match=f"of '{VALUE}'"):
        read(store, store.find(2))


def test_our_record_beside_files_of_another_writer_is_refused(tmp_path: Path) -> None:
    mine = Version(number=5, step=5, prefix="", step_done_at=1.0, snapshot_at=1.0)
    with StoreWriter(tmp_path) as writer:
        writer.commit(mine, {VALUE: np.ones(2, np.float32)})
    tf.train.Checkpoint(weights=tf.Variable([3.0, 4.0])).write(str(tmp_path / "ckpt-5"))
    store = Store(tmp_path)
    with pytest.raises(
        CorruptCheckpointError,
        match=r"ckpt-5.json: expected the record of the parameters in ckpt-5, found that of others",
    ):
        store.open(store.find(5))


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_links_and_fifos_in_place_of_files_are_refused(half: Path, suffix: str) -> None:
    store = Store(half)
    version = store.find(2)
    file = half / f"ckpt-2.{suffix}"
    makers: list[Callable[[], object]] = [
        lambda: file.symlink_to(half / f"ckpt-1.{suffix}"),
        lambda: os.mkfifo(file),
        file.mkdir,
        file.touch,
    ]
    for make in makers:
        shutil.rmtree(file) if file.is_dir() else file.unlink()
        make()
        with pytest.raises(CorruptCheckpointError, match=rf"ckpt-2\.{suffix}: expected .* found"):
            read(store, version)


# Writers that know nothing of readers ---------------------------------------------------------------------------------


class Pair(tf.train.Checkpoint):
    """Two tensors that have the number of the save as their values."""

    def __init__(self) -> None:
        super().__init__(weights=tf.Variable(tf.zeros(5000, tf.int64)), again=tf.Variable(tf.zeros(5000, tf.int64)))

    def fill(self, number: int) -> None:
        for one in (self.weights, self.again):
            one.assign(tf.fill((5000,), tf.cast(number, tf.int64)))


def manager_that_keeps_one(directory: Path, number: int, pair: Pair) -> None:
    """Each save has a name of its own, and the one before is taken away."""
    manager = tf.train.CheckpointManager(pair, str(directory), max_to_keep=1)
    manager.save(number)


def one_name_for_all(directory: Path, number: int, pair: Pair) -> None:
    pair.write(str(directory / "model"))
    v1.train.update_checkpoint_state(str(directory), "model")


class Follower(threading.Thread):
    """Restores the latest again and again; notes what it sees, and what it must not see."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.seen: list[int] = []
        self.wrong: list[object] = []
        self._store = Store(directory)

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self._look()
            except (CorruptCheckpointError, UnknownVersionError):
                continue  # refused, which is what is to happen to half a save
            except BaseException as error:  # noqa: BLE001, shown by the test
                self.wrong.append(error)
                return

    def _look(self) -> None:
        version = self._store.latest()
        if version is None:
            return
        found = read(self._store, version)
        values = {one for name in (VALUE, AGAIN) for one in found[name].tolist()}
        if len(values) != 1 or min(values) < max(self.seen[-1:], default=0):
            self.wrong.append((values, self.seen[-1:]))
        self.seen.extend(values)


@pytest.mark.parametrize("save", [manager_that_keeps_one, one_name_for_all])
def test_what_is_read_while_tensorflow_writes_is_one_save_or_refused(
    tmp_path: Path, save: Callable[[Path, int, Pair], None]
) -> None:
    pair = Pair()
    follower = Follower(tmp_path)
    follower.start()
    number = 0
    while len(set(follower.seen)) < 50 and not follower.wrong and number < 5000:
        number += 1
        pair.fill(number)
        save(tmp_path, number, pair)
    follower.stop.set()
    follower.join()
    assert follower.wrong == []
    assert len(set(follower.seen)) >= 50
    store = Store(tmp_path)
    latest = store.latest()
    assert latest is not None
    assert set(read(store, latest)[VALUE].tolist()) == {number}
