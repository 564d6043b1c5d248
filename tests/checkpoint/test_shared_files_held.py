"""Files that versions have in common, and tensors in them, without versions: what is there, and what is the same."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paramsync.checkpoint.data_file import DataFile, hold
from paramsync.checkpoint.reader import Bundle
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import data_file, index_file
from tests.support.checkpoints import resident, write
from tests.support.disks import dropped
from tests.support.wide import SIZE


@pytest.fixture
def pair(memory: Path) -> tuple[DataFile, DataFile]:
    """A file that is held by two names, in the same memory."""
    one, other = memory / "one", memory / "other"
    one.write_bytes(bytes(8 * SIZE))
    other.hardlink_to(one)
    first = hold(one, mapped=True)
    assert first is not None
    assert first.is_mapped
    second = hold(other, mapped=True, find=lambda _: first)
    assert second is not None
    return first, second


def test_what_the_kernel_dropped_is_brought_in_again(disk: Path) -> None:
    file = disk / "file"
    file.write_bytes(bytes(2 * SIZE))
    held = hold(file, mapped=True)
    assert held is not None
    held.prefault(0, 2 * SIZE)
    if not dropped(file, SIZE):
        pytest.skip("this kernel drops nothing")
    assert resident(disk) == SIZE
    held.prefault(0, 2 * SIZE)
    assert resident(disk) == 2 * SIZE


def test_of_an_empty_file_nothing_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    held = hold(tmp_path / "file", mapped=True)
    assert held is not None
    assert held.is_present(0, 0)


def test_tensors_are_the_same_where_file_place_and_checksum_are(tmp_path: Path) -> None:
    values = np.arange(1000, dtype=np.float32)
    write(tmp_path / "ckpt-1", {"a": values, "b": values})
    found = index.decode(index_file(tmp_path / "ckpt-1").read_bytes(), path=tmp_path)
    data_file(tmp_path / "ckpt-2", 0, 1).hardlink_to(data_file(tmp_path / "ckpt-1", 0, 1))
    other_shape = replace(found.entries["a"], shape=(10, 100))
    entries = {**found.entries, "b": replace(found.entries["b"], crc32c=1), "c": other_shape}
    index_file(tmp_path / "ckpt-2").write_bytes(index.encode(replace(found, entries=entries)))
    one, other = Bundle.open(tmp_path / "ckpt-1"), Bundle.open(tmp_path / "ckpt-2")
    assert one.marks("a") == other.marks("a") != other.marks("c")
    assert one.marks("a") != one.marks("b") != other.marks("b")
    os.utime(data_file(tmp_path / "ckpt-1", 0, 1), ns=(1, 1))
    assert Bundle.open(tmp_path / "ckpt-1").marks("a") != one.marks("a")
