"""What strangers do to spares between two publications: nothing of it is followed, waited for, or published."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paramsync.checkpoint.data_file import SPARES
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.support.written import tensors, version


def cut(spare: Path) -> None:
    os.truncate(spare, 100)


def empty(spare: Path) -> None:
    os.truncate(spare, 0)


def grow(spare: Path) -> None:
    os.truncate(spare, spare.stat().st_size + 1)


def remove(spare: Path) -> None:
    spare.unlink()


def replace(spare: Path) -> None:
    content = bytes(spare.stat().st_size)
    spare.unlink()
    spare.write_bytes(content)


def link_outside(spare: Path) -> None:
    outside = spare.parent.with_name("outside")
    outside.write_bytes(bytes(spare.stat().st_size))
    spare.unlink()
    spare.symlink_to(outside)


def link_to_a_version(spare: Path) -> None:
    """The file of the latest version gets the name of a spare, too."""
    spare.unlink()
    latest = max(spare.parent.glob("ckpt-*.data-00001-of-*"), key=lambda file: int(file.name[5:].partition(".")[0]))
    os.link(latest, spare)


def turn_to_fifo(spare: Path) -> None:
    spare.unlink()
    os.mkfifo(spare)


def turn_to_directory(spare: Path) -> None:
    spare.unlink()
    spare.mkdir()


def forbid(spare: Path) -> None:
    spare.chmod(0)


HARMS = [cut, empty, grow, remove, replace, link_outside, link_to_a_version, turn_to_fifo, turn_to_directory, forbid]


def assert_sound(path: Path, *numbers: int) -> None:
    store = Store(path)
    assert [one.number for one in store.versions()] == list(numbers)
    for one in store.versions():
        opened = store.open(one)
        opened.verify(opened.entries)
        assert all(np.array_equal(opened.array(name), array) for name, array in tensors(one.number).items())


def spares_of(path: Path) -> list[Path]:
    return [file for file in path.iterdir() if file.name.startswith(".spare-")]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("open_meanwhile", [True, False], ids=["a publisher that is open", "the next publisher"])
def test_a_spare_that_was_harmed_harms_no_version(
    tmp_path: Path, harm: Callable[[Path], None], open_meanwhile: bool
) -> None:
    path = tmp_path / "store"
    writer = StoreWriter(path, keep=2)
    for number in range(1, 6):
        writer.commit(version(number), tensors(number))
    held = Store(path).open(Store(path).find(5))
    if not open_meanwhile:
        writer.close()
    assert spares_of(path)
    for spare in spares_of(path):
        harm(spare)
    if not open_meanwhile:
        writer = StoreWriter(path, keep=2)
    for number in range(6, 12):
        writer.commit(version(number), tensors(number))
        assert_sound(path, number - 1, number)
        held.verify(held.entries)
    writer.close()
    assert len([file for file in spares_of(path) if file.is_file() and not file.is_symlink()]) <= SPARES
    if (tmp_path / "outside").exists():
        assert not any((tmp_path / "outside").read_bytes())


def test_a_store_whose_spares_are_gone_is_published_to(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "store", keep=2) as writer:
        for number in range(1, 12):
            writer.commit(version(number), tensors(number))
            for spare in spares_of(tmp_path / "store"):
                shutil.move(spare, tmp_path / f"{number}{spare.name}")
            assert_sound(tmp_path / "store", *range(max(1, number - 1), number + 1))
