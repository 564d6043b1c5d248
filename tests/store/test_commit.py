"""What is written with a version: what did not change is shared with the one before, and its record says so."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paramsync.errors import StoreError
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store, record_file
from tests.support.whole import assert_whole
from tests.support.written import FROZEN, is_spare, names, publish, tensors, version


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


def test_a_record_says_what_was_written_and_what_it_is(tmp_path: Path) -> None:
    first, second, third = publish(tmp_path, 1, 2, 3)
    assert first.bytes == first.bytes_written == sum(array.nbytes for array in tensors(1).values())
    assert second.bytes_written == first.bytes - FROZEN.nbytes
    assert len({first.checksum, second.checksum, third.checksum}) == 3
    assert Store(tmp_path).versions() == [first, second, third]


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
        writer.commit(version(1), tensors(1))
        held = store.open(store.find(1))
        for number in range(2, 12):
            writer.commit(version(number), tensors(number))
            held.verify(held.entries)
            assert np.array_equal(held.array("kernel"), tensors(1)["kernel"])
    assert assert_whole(tmp_path) == 11


def test_closing_leaves_nothing_open(tmp_path: Path) -> None:
    publish(tmp_path, *range(1, 10), keep=2)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [link for link in links if str(tmp_path) in os.fspath(link.readlink())]


def test_a_version_whose_times_nobody_could_read_is_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer, pytest.raises(StoreError, match="expected times in seconds since the epoch"):
        writer.commit(replace(version(1), step_done_at=float("nan")), tensors(1))


def test_metrics_of_numpy_are_numbers_too(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        writer.commit(replace(version(1), metrics={"loss": np.float32(0.5)}), tensors(1))  # type: ignore[dict-item]
    assert Store(tmp_path).find(1).metrics == {"loss": 0.5}
