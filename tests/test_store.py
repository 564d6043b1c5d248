"""The store: what is published is complete, what is listed is there, what is in nobody's way stays."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync import shards
from paramsync.dtypes import Array
from paramsync.errors import (
    CorruptCheckpointError,
    ParameterError,
    SettingsError,
    StoreError,
    StoreLockedError,
    UnknownVersionError,
)
from paramsync.store import Store
from paramsync.version import Version
from paramsync.writer import StoreWriter


def version(number: int, *, graph: str = "", step: int | None = None) -> Version:
    step = number if step is None else step
    return Version(number=number, step=step, prefix="", graph=graph, step_done_at=1.5, snapshot_at=2.5)


def tensors(value: float) -> dict[str, Array]:
    return {"kernel": np.full((4, 5), value, np.float32), "bias": np.full(5, value, np.float64)}


def publish(path: Path, *numbers: int, keep: int = 5, graph: str = "") -> list[Version]:
    with StoreWriter(path, keep=keep) as writer:
        if graph:
            writer.add_graph(graph, b"graph")
        return [writer.commit(version(number, graph=graph), tensors(number)) for number in numbers]


def assert_serves(path: Path, number: int) -> None:
    """The latest is that version, whole and with its values, for us and for TensorFlow."""
    store = Store(path)
    latest = store.latest()
    assert latest is not None
    assert latest.number == number
    opened = store.open(latest)
    opened.verify(opened.entries)
    for name, array in tensors(number).items():
        assert np.array_equal(opened.array(name), array)
    prefix = tf.train.latest_checkpoint(str(path))
    assert prefix == str(store.prefix(latest))
    assert np.array_equal(tf.train.load_checkpoint(prefix).get_tensor("kernel"), tensors(number)["kernel"])


def names(path: Path) -> set[str]:
    found = {file.name for file in path.iterdir()} - {"publisher.lock", "checkpoint"}
    return {name for name in found if not name.startswith(".spare-")}


def files_of(*numbers: int) -> set[str]:
    return {f"ckpt-{number}.{suffix}" for number in numbers for suffix in ("index", "json", "data-00000-of-00001")}


# Publishing -----------------------------------------------------------------------------------------------------------


def test_what_is_published_is_the_latest(tmp_path: Path) -> None:
    for number in (1, 2, 30):
        (committed,) = publish(tmp_path / "store", number)
        assert Store(tmp_path / "store").latest() == committed
        assert_serves(tmp_path / "store", number)


def test_a_committed_version_says_when_and_how_much(tmp_path: Path) -> None:
    (committed,) = publish(tmp_path, 7)
    assert committed.prefix == "ckpt-7"
    assert committed.bytes == 4 * 5 * 4 + 5 * 8
    assert committed.committed_at is not None
    assert abs(committed.committed_at - (tmp_path / "checkpoint").stat().st_mtime) < 5


def test_a_record_keeps_everything(tmp_path: Path) -> None:
    full = Version(number=8, step=3, prefix="", graph="ab12", step_done_at=1.5, snapshot_at=2.5, metrics={"loss": 0.25})
    with StoreWriter(tmp_path) as writer:
        writer.add_graph("ab12", b"graph")
        committed = writer.commit(full, tensors(8))
    assert Store(tmp_path).find(8) == committed
    assert committed.metrics == {"loss": 0.25}
    assert committed.step == 3


def test_a_number_is_the_step_where_that_is_above_all_before(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        assert writer.next_number(0) == 0
        assert writer.next_number(10) == 10
        assert writer.next_number(10) == 11  # though neither is committed
        writer.commit(version(11), tensors(11))
    with StoreWriter(tmp_path) as writer:
        assert writer.next_number(4) == 12
        assert writer.next_number(100) == 100


@pytest.mark.parametrize("number", [-1, 4, 5, 10**18])
def test_a_version_must_be_above_the_latest(tmp_path: Path, number: int) -> None:
    publish(tmp_path, 5)
    with pytest.raises(StoreError, match=f"expected a version above 5, found {number}"):
        publish(tmp_path, number)
    assert_serves(tmp_path, 5)


def test_a_version_of_a_graph_that_was_not_added_is_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        with pytest.raises(StoreError, match="expected graph ab12 to be added before version 1"):
            writer.commit(version(1, graph="ab12"), tensors(1))
        writer.add_graph("ab12", b"graph")
        writer.commit(version(1, graph="ab12"), tensors(1))
    assert Store(tmp_path).graph_file("ab12").read_bytes() == b"graph"


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"step": 1 << 63}, {"graph": "../x"}, {"metrics": {"a\n": 1.0}}],
)
def test_a_version_that_no_follower_would_believe_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with StoreWriter(tmp_path) as writer, pytest.raises(StoreError, match=r"version 1: expected .* found"):
        writer.commit(replace(version(1), **change), tensors(1))
    assert names(tmp_path) == set()


def test_a_metric_may_be_no_number(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        writer.commit(replace(version(1), metrics={"loss": float("nan")}), tensors(1))
    assert math.isnan(Store(tmp_path).find(1).metrics["loss"])


def test_a_closed_writer_publishes_nothing(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="is closed"):
        writer.commit(version(1), tensors(1))


# What fails -----------------------------------------------------------------------------------------------------------


def fill(path: Path) -> Callable[[], None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, before[1]))  # enough for a mark and the first bytes
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def forbid(path: Path) -> Callable[[], None]:
    if os.geteuid():
        path.chmod(0o500)
        return lambda: path.chmod(0o700)
    aside = path.with_name("aside")  # nobody forbids root anything
    path.rename(aside)
    path.touch()

    def restore() -> None:
        path.unlink()
        aside.rename(path)

    return restore


def block(path: Path) -> Callable[[], None]:
    """The record cannot be written: what fails comes after data and index."""
    (path / ".tmp-ckpt-4.json").mkdir()
    return (path / ".tmp-ckpt-4.json").rmdir


@pytest.mark.parametrize("harm", [fill, forbid, block])
def test_a_publication_that_fails_leaves_the_version_before(
    tmp_path: Path, harm: Callable[[Path], Callable[[], None]]
) -> None:
    path = tmp_path / "store"
    with StoreWriter(path, keep=2) as writer:
        for number in (1, 2, 3):
            writer.commit(version(number), tensors(number))
        heal = harm(path)
        with pytest.raises(StoreError, match=r"version 4 was not published: |expected a directory, found a file"):
            writer.commit(version(4), tensors(4))
        heal()
        assert names(path) == files_of(2, 3)
        assert_serves(path, 3)
        writer.commit(version(5), tensors(5))
    assert names(path) == files_of(3, 5)
    assert_serves(path, 5)


def test_a_tensor_that_cannot_be_stored_leaves_the_version_before(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(1), tensors(1))
        with pytest.raises(ParameterError, match="'zz'"):
            writer.commit(version(2), {**tensors(2), "zz": np.array([1], object)})
        assert names(tmp_path) == files_of(1)
    assert_serves(tmp_path, 1)


# Who may publish ------------------------------------------------------------------------------------------------------


def test_a_second_publisher_is_told_who_the_first_is(tmp_path: Path) -> None:
    with (
        StoreWriter(tmp_path),
        pytest.raises(StoreLockedError, match=rf"process {os.getpid()} on {re.escape(socket.gethostname())}"),
    ):
        StoreWriter(tmp_path)
    StoreWriter(tmp_path).close()


def test_a_lock_that_says_nothing_holds_all_the_same(tmp_path: Path) -> None:
    with StoreWriter(tmp_path):
        for content in ("", "nonsense", "[1]", "{}", "[" * 5000):
            (tmp_path / "publisher.lock").write_text(content)
            with pytest.raises(StoreLockedError, match="did not say who"):
                StoreWriter(tmp_path)


def test_a_writer_that_could_not_open_holds_no_lock(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("nonsense")
    with pytest.raises(CorruptCheckpointError):
        StoreWriter(tmp_path)
    (tmp_path / "checkpoint").unlink()
    StoreWriter(tmp_path).close()


def test_a_child_that_outlives_its_publisher_does_not_keep_the_lock(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with StoreWriter(tmp_path):
        child = subprocess.Popen(["cat"], stdin=reading, close_fds=False)
    StoreWriter(tmp_path).close()
    os.close(writing)
    os.close(reading)
    child.wait()


@pytest.mark.parametrize("keep", [0, -1])
def test_a_store_keeps_at_least_one_version(tmp_path: Path, keep: int) -> None:
    with pytest.raises(SettingsError, match=f"expected at least 1 version, found {keep}"):
        StoreWriter(tmp_path, keep=keep)


def test_a_path_that_is_a_file_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    for act in (StoreWriter, lambda path: Store(path).latest(), lambda path: Store(path).versions()):
        for where in (path, path / "below"):
            with pytest.raises(StoreError, match=r"[Nn]ot a directory|expected a directory, found a file"):
                act(where)


# What goes ------------------------------------------------------------------------------------------------------------


def test_only_the_newest_versions_are_kept(tmp_path: Path) -> None:
    publish(tmp_path, 1, 2, 3, 4, keep=2)
    assert names(tmp_path) == files_of(3, 4)
    assert [one.number for one in Store(tmp_path).versions()] == [3, 4]
    publish(tmp_path, 5, keep=1)
    assert names(tmp_path) == files_of(5)
    assert_serves(tmp_path, 5)


@pytest.mark.parametrize("keep", [1, 2, 3, 4, 5, 6, 7, 100])
def test_as_many_versions_are_kept_as_asked_for(tmp_path: Path, keep: int) -> None:
    for number in range(1, 7):
        publish(tmp_path, number, keep=keep)
        kept = range(max(1, number - keep + 1), number + 1)
        assert [one.number for one in Store(tmp_path).versions()] == list(kept)
        assert names(tmp_path) == files_of(*kept)


def test_a_graph_goes_with_the_last_version_that_has_it(tmp_path: Path) -> None:
    publish(tmp_path, 1, 2, keep=2, graph="aa")
    publish(tmp_path, 3, keep=2, graph="bb")
    assert {"graph-aa.pb", "graph-bb.pb"} <= names(tmp_path)
    publish(tmp_path, 4, keep=2, graph="bb")
    assert names(tmp_path) == files_of(3, 4) | {"graph-bb.pb"}


def test_a_graph_waits_for_its_first_version(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, keep=1) as writer:
        writer.add_graph("aa", b"graph")
        writer.commit(version(1, graph="aa"), tensors(1))
        writer.add_graph("bb", b"graph")
        writer.commit(version(2), tensors(2))
        assert names(tmp_path) == files_of(2) | {"graph-bb.pb"}
        writer.commit(version(3, graph="bb"), tensors(3))
        assert names(tmp_path) == files_of(3) | {"graph-bb.pb"}


def test_a_new_publisher_clears_away_what_a_killed_one_left(tmp_path: Path) -> None:
    publish(tmp_path, 1, 2)
    shards.write(tmp_path / "ckpt-3", tensors(3))
    for name in (".tmp-ckpt-4.data-00000-of-00001", ".tmp-checkpoint", ".unlisted-ckpt-3", ".unlisted-ckpt-2"):
        (tmp_path / name).touch()
    StoreWriter(tmp_path).close()
    assert names(tmp_path) == files_of(1, 2)


def test_what_others_put_there_stays(tmp_path: Path) -> None:
    for name in ("ckpt-best.index", "ckpt-99.index", "graph-ff.pb", "model.meta", "README"):
        (tmp_path / name).touch()
    (tmp_path / "training").mkdir()
    publish(tmp_path, 1, 2, 3, keep=1)
    others = {"ckpt-best.index", "ckpt-99.index", "graph-ff.pb", "model.meta", "README", "training"}
    assert names(tmp_path) == files_of(3) | others


def test_what_cannot_be_removed_now_is_removed_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with StoreWriter(tmp_path, keep=1) as writer:
        writer.commit(version(1), tensors(1))
        stuck = tmp_path / "ckpt-1.data-more"
        stuck.mkdir()  # unlink cannot remove it
        writer.commit(version(2), tensors(2))
        assert "old versions were not removed" in caplog.text
        assert_serves(tmp_path, 2)
        stuck.rmdir()
        writer.commit(version(3), tensors(3))
    assert names(tmp_path) == files_of(3)


def test_a_bundle_that_is_open_outlives_its_version(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    store = Store(tmp_path)
    opened = store.open(store.find(1))
    publish(tmp_path, 2, keep=1)
    opened.verify(opened.entries)
    assert np.array_equal(opened.array("kernel"), tensors(1)["kernel"])


def test_a_version_pruned_since_it_was_seen_is_unknown_not_broken(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    store = Store(tmp_path)
    seen = store.find(1)
    publish(tmp_path, 2, keep=1)
    with pytest.raises(UnknownVersionError, match=r"version 1 of .* is not there; there are: 2$"):
        store.open(seen)


def test_followers_always_find_a_whole_version(tmp_path: Path) -> None:
    """A publisher that keeps one version takes every other away under those who follow it."""
    publish(tmp_path, 0, keep=1)
    done = threading.Event()
    problems: list[Exception] = []
    seen: set[int] = set()

    def follow() -> None:
        store = Store(tmp_path)
        while not done.is_set():
            try:
                latest = store.latest()
                assert latest is not None
                opened = store.open(latest)
                opened.verify(opened.entries)
                assert opened.array("kernel")[0, 0] == latest.number
                seen.add(latest.number)
            except UnknownVersionError:
                continue
            except Exception as error:  # noqa: BLE001, whatever it is, the test must know
                problems.append(error)
                return

    followers = [threading.Thread(target=follow) for _ in range(3)]
    for follower in followers:
        follower.start()
    publish(tmp_path, *range(1, 120), keep=1)
    done.set()
    for follower in followers:
        follower.join()
    assert not problems
    assert len(seen) > 1


# What is there --------------------------------------------------------------------------------------------------------


def test_nothing_is_published_in_an_empty_or_missing_store(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").touch()
    for path in (tmp_path, tmp_path / "empty", tmp_path / "missing"):
        assert Store(path).latest() is None
        assert Store(path).versions() == []
        with pytest.raises(UnknownVersionError, match="there are: none"):
            Store(path).find(3)


def test_latest_ignores_a_version_still_being_written(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    shards.write(tmp_path / "ckpt-2", tensors(2))
    assert_serves(tmp_path, 1)
    assert [one.number for one in Store(tmp_path).versions()] == [1]


def test_a_version_whose_files_are_gone_is_not_listed(tmp_path: Path) -> None:
    publish(tmp_path, 1, 2, 3)
    (tmp_path / "ckpt-2.index").unlink()
    assert [one.number for one in Store(tmp_path).versions()] == [1, 3]
    with pytest.raises(UnknownVersionError, match="there are: 1, 3"):
        Store(tmp_path).find(2)


def test_a_latest_version_whose_files_are_gone_is_a_fault(tmp_path: Path) -> None:
    publish(tmp_path, 1, 2)
    (tmp_path / "ckpt-2.index").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"checkpoint: expected the files of ckpt-2, found no such files"):
        Store(tmp_path).latest()
    assert [one.number for one in Store(tmp_path).versions()] == [1]


def test_a_listed_version_whose_data_is_gone_is_a_fault(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    (tmp_path / "ckpt-1.data-00000-of-00001").unlink()
    store = Store(tmp_path)
    with pytest.raises(CorruptCheckpointError, match="expected a data file, found No such file"):
        store.open(store.find(1))


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "model_checkpoint_path: 7",
        'model_checkpoint_path: "../elsewhere/ckpt-1"',
        'model_checkpoint_path: ".."',
        'model_checkpoint_path: "/"',
        'model_checkpoint_path: "/.."',
        'model_checkpoint_path: "sub/ckpt-1"',
        'model_checkpoint_path: "ckpt\\0-1"',
        'model_checkpoint_path: "."',
        'model_checkpoint_path: "ckpt\\n-1"',
        f'model_checkpoint_path: "{"a" * 300}-1"',
        "x {" * 50_000,
        "x: [" * 50_000,
        'model_checkpoint_path: "ckpt-1" all_model_checkpoint_paths: "../../ckpt-1"',
    ],
)
def test_a_state_file_that_is_malformed_or_leads_elsewhere_is_refused(tmp_path: Path, text: str) -> None:
    publish(tmp_path, 1)
    (tmp_path / "checkpoint").write_text(text)
    for act in (Store(tmp_path).latest, Store(tmp_path).versions):
        with pytest.raises(CorruptCheckpointError, match=r"checkpoint: expected .* found .{,300}$"):
            act()


def test_a_state_file_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    file = tmp_path / "checkpoint"
    file.rename(tmp_path / "other")
    for make in (
        file.mkdir,
        lambda: os.mkfifo(file),
        lambda: file.symlink_to("other"),
        lambda: file.write_bytes(b"\xff"),
    ):
        make()
        with pytest.raises(CorruptCheckpointError):
            Store(tmp_path).latest()
        file.rmdir() if file.is_dir() else file.unlink()


@pytest.mark.parametrize(
    "change",
    [
        {"prefix": "../ckpt-2"},
        {"prefix": "ckpt-1"},
        {"number": 3},
        {"step": -1},
        {"step": 1 << 63},
        {"bytes": -1},
        {"graph": "../../etc/passwd"},
        {"graph": "A" * 10},
        {"graph": "A" * 10_000},
        {"metrics": {"a": "b" * 10_000}},
        {"metrics": {"a": 10**400}},
        {"metrics": {"\ud800": 1}},
        {"number": None},
    ],
)
def test_a_record_that_is_not_believable_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    publish(tmp_path, 1, 2)
    record = tmp_path / "ckpt-2.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    with pytest.raises(CorruptCheckpointError, match=r"ckpt-2\.json: expected .* found .{,300}$"):
        Store(tmp_path).latest()
    assert [one.number for one in Store(tmp_path).versions()] == [1]
    assert publish(tmp_path, 3, keep=1)[0] == Store(tmp_path).latest()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b" " * (2 << 20)])
def test_a_record_that_is_no_record_is_refused(tmp_path: Path, content: bytes) -> None:
    publish(tmp_path, 2)
    (tmp_path / "ckpt-2.json").write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=r"ckpt-2\.json: expected .* found"):
        Store(tmp_path).latest()


@pytest.mark.parametrize("prefix", ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b"])
def test_no_prefix_leads_out_of_the_store(tmp_path: Path, prefix: str) -> None:
    hostile = Version(number=1, step=1, prefix=prefix, step_done_at=0, snapshot_at=0)
    for act in (Store(tmp_path).prefix, Store(tmp_path).open):
        with pytest.raises(StoreError, match="expected a prefix in this directory"):
            act(hostile)


@pytest.mark.parametrize("digest", ["", "..", "../ab", "AB", "ab.pb", "ab\n", "a" * 129])
def test_a_digest_is_hexadecimal(tmp_path: Path, digest: str) -> None:
    with pytest.raises(StoreError, match="expected the hexadecimal digest of a graph"):
        Store(tmp_path).graph_file(digest)


# What TensorFlow publishes --------------------------------------------------------------------------------------------


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
        writer.commit(version(4), tensors(4))
        writer.commit(version(5), tensors(5))
    assert [one.prefix for one in Store(tmp_path).versions()] == ["theirs-1", "theirs-2", "theirs-3", "ckpt-5"]
    assert_serves(tmp_path, 5)


def test_checkpoint_managers_can_continue_what_we_began(tmp_path: Path) -> None:
    publish(tmp_path, 1, 2)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(), str(tmp_path), max_to_keep=1)
    assert manager.latest_checkpoint == str(tmp_path / "ckpt-2")
    manager.save(checkpoint_number=3)
    assert [one.number for one in Store(tmp_path).versions()] == [3]
    publish(tmp_path, 4)  # which lists its own again, so that they go when their time comes
    assert [one.number for one in Store(tmp_path).versions()] == [1, 2, 3, 4]
    publish(tmp_path, 5, keep=1)
    assert [one.number for one in Store(tmp_path).versions()] == [3, 5]
