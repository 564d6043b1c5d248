"""What is published is the latest, whole, and shares what did not change; what fails leaves the version before."""

from __future__ import annotations

import math
import os
import re
import resource
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramsync.errors import StoreError, StoreLockedError
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store, record_file
from tests.support.whole import assert_serves, assert_whole
from tests.support.written import (
    FROZEN,
    changing,
    files_of,
    is_spare,
    names,
    publish,
    publish_changing,
    tensors,
    version,
)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_versions_share_what_did_not_change_and_files_go_round(tmp_path: Path, keep: int) -> None:
    inodes: set[int] = set()
    with StoreWriter(tmp_path, keep=keep) as writer:
        for number in range(1, 20):
            committed = writer.commit(version(number), tensors(number))
            assert assert_whole(tmp_path) == number
            inodes.update(file.stat().st_ino for file in tmp_path.glob("ckpt-*.data-*"))
            if number > 1:
                assert committed.bytes_written == committed.bytes - FROZEN.nbytes
                assert writer.unchanged == {"frozen"}
            if number > keep + 3:
                assert sum(map(is_spare, names(tmp_path))) == 1
    assert len(inodes) == keep + 2  # what is frozen, what is trained in each version, and the one to be written next


def test_a_record_counts_the_publications_of_its_store(tmp_path: Path) -> None:
    first = publish(tmp_path, 10, 20, 30)
    assert [version.publications for version in first] == [1, 2, 3]
    for found in first:  # as an earlier release wrote them
        record_file(tmp_path, found.prefix).write_text(replace(found, publications=0).to_json())
    assert [version.publications for version in publish(tmp_path, 40, 50)] == [4, 5]


def test_a_publication_that_failed_is_not_what_the_next_is_compared_with(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, keep=2) as writer:
        writer.commit(version(1), tensors(1))
        (tmp_path / ".tmp-ckpt-2.json").mkdir()
        with pytest.raises(StoreError, match="version 2 was not published"):
            writer.commit(version(2), {**tensors(2), "frozen": FROZEN + 1})
        (tmp_path / ".tmp-ckpt-2.json").rmdir()
        assert not any("ckpt-2" in name and not is_spare(name) for name in names(tmp_path))
        committed = writer.commit(version(3), tensors(3))
        assert committed.bytes_written == committed.bytes - FROZEN.nbytes
    assert assert_whole(tmp_path) == 3


def test_a_version_that_is_held_stays_as_it_is_while_others_go_round(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with StoreWriter(tmp_path, keep=1) as writer:
        writer.commit(version(1), changing(1))
        held = store.open(store.find(1))
        for number in range(2, 12):
            writer.commit(version(number), changing(number))
            held.verify(held.entries)
            assert np.array_equal(held.array("kernel"), changing(1)["kernel"])
    assert_serves(tmp_path, 11)


def test_a_number_is_the_step_where_that_is_above_all_before(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        assert writer.next_number(0) == 0
        assert writer.next_number(10) == 10
        assert writer.next_number(10) == 11  # though neither is committed
        writer.commit(version(11), changing(11))
    with StoreWriter(tmp_path) as writer:
        assert writer.next_number(4) == 12
        assert writer.next_number(100) == 100


@pytest.mark.parametrize("number", [-1, 4, 5, 10**18])
def test_a_version_must_be_above_the_latest(tmp_path: Path, number: int) -> None:
    publish_changing(tmp_path, 5)
    with pytest.raises(StoreError, match=f"expected a version above 5, found {number}"):
        publish_changing(tmp_path, number)
    assert_serves(tmp_path, 5)


def test_a_version_of_a_graph_that_was_not_added_is_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        with pytest.raises(StoreError, match="expected graph ab12 to be added before version 1"):
            writer.commit(version(1, graph="ab12"), changing(1))
        writer.add_graph("ab12", b"graph")
        writer.commit(version(1, graph="ab12"), changing(1))
    assert Store(tmp_path).graph_file("ab12").read_bytes() == b"graph"


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"step": 1 << 63}, {"graph": "../x"}, {"metrics": {"a\n": 1.0}}, {"step_done_at": math.nan}],
)
def test_a_version_that_no_follower_would_believe_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with StoreWriter(tmp_path) as writer, pytest.raises(StoreError, match=r"version 1: expected .* found"):
        writer.commit(replace(version(1), **change), changing(1))
    assert names(tmp_path, spares=False) == set()


def test_a_closed_writer_publishes_nothing(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="is closed"):
        writer.commit(version(1), changing(1))


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
            writer.commit(version(number), changing(number))
        heal = harm(path)
        with pytest.raises(StoreError, match=r"version 4 was not published: |expected a directory, found a file"):
            writer.commit(version(4), changing(4))
        heal()
        assert names(path, spares=False) == files_of(2, 3, data=1)
        assert_serves(path, 3)
        writer.commit(version(5), changing(5))
    assert names(path, spares=False) == files_of(3, 5, data=1)
    assert_serves(path, 5)


def test_a_second_publisher_is_told_who_the_first_is(tmp_path: Path) -> None:
    with (
        StoreWriter(tmp_path),
        pytest.raises(StoreLockedError, match=rf"process {os.getpid()} on {re.escape(socket.gethostname())}"),
    ):
        StoreWriter(tmp_path)
    StoreWriter(tmp_path).close()


def test_a_writer_that_could_not_open_holds_no_lock(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model-999999999999999999"')
    with pytest.raises(StoreError, match="no number"):
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


def test_a_path_that_is_a_file_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    for act in (StoreWriter, lambda path: Store(path).latest(), lambda path: Store(path).versions()):
        for where in (path, path / "below"):
            with pytest.raises(StoreError, match=r"[Nn]ot a directory|expected a directory, found a file"):
                act(where)
