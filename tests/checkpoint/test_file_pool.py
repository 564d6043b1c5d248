"""Spare files: overwritten in place when nobody uses them, few, mapped from use to use; strangers harm no version."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from paramsync.checkpoint.file_pool import SPARES, FilePool
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.support.troubles import run_on_small_disk
from tests.support.written import tensors, version

SIZE = 100_000


def write(spares: FilePool, path: Path, value: int, size: int = SIZE) -> int:
    """Write a file of equal bytes. Returns its inode."""
    with spares.writing(path, size) as file:
        file.content[:] = value
    assert path.read_bytes()[:size] == bytes([value]) * size
    return path.stat().st_ino


def listing(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a file as a follower does."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def test_a_retired_file_is_overwritten_in_place(spares: FilePool, tmp_path: Path) -> None:
    first = write(spares, tmp_path / "ckpt-1.data", 1)
    for number in range(2, 6):
        spares.retire(tmp_path / f"ckpt-{number - 1}.data")
        assert listing(tmp_path) == [f".spare-ckpt-{number - 1}.data"]
        assert write(spares, tmp_path / f"ckpt-{number}.data", number) == first
        assert listing(tmp_path) == [f"ckpt-{number}.data"]


def test_a_file_with_another_name_only_loses_one(spares: FilePool, tmp_path: Path) -> None:
    write(spares, tmp_path / "ckpt-1.data", 1)
    os.link(tmp_path / "ckpt-1.data", tmp_path / "ckpt-2.data")
    spares.retire(tmp_path / "ckpt-1.data")
    assert listing(tmp_path) == ["ckpt-2.data"]
    spares.retire(tmp_path / "ckpt-2.data")
    assert listing(tmp_path) == [".spare-ckpt-2.data"]
    spares.retire(tmp_path / "ckpt-3.data")  # which is not there


@pytest.mark.parametrize(("size", "reused"), [(SIZE, True), (80_000, True), (79_000, False), (SIZE + 1, False)])
def test_a_spare_that_is_too_small_or_much_too_large_is_not_used(
    spares: FilePool, tmp_path: Path, size: int, reused: bool
) -> None:
    first = write(spares, tmp_path / "ckpt-1.data", 1)
    spares.retire(tmp_path / "ckpt-1.data")
    assert (write(spares, tmp_path / "ckpt-2.data", 2, size) == first) is reused
    assert (tmp_path / "ckpt-2.data").stat().st_size == (SIZE if reused else size)


def test_a_spare_of_no_use_goes_after_a_while(spares: FilePool, tmp_path: Path) -> None:
    write(spares, tmp_path / "ckpt-0.data", 1, 10 * SIZE)
    spares.retire(tmp_path / "ckpt-0.data")
    for number in range(1, 10):
        write(spares, tmp_path / f"ckpt-{number}.data", number)
        spares.retire(tmp_path / f"ckpt-{number}.data")
        spares.trim()
    assert listing(tmp_path) == [".spare-ckpt-9.data"]


def test_a_spare_with_holes_gets_its_pages_before_it_is_written(tmp_path: Path) -> None:
    (tmp_path / ".spare-x").touch()
    os.truncate(tmp_path / ".spare-x", SIZE)
    spares = FilePool(tmp_path)
    with spares.writing(tmp_path / "ckpt-1.data", SIZE) as file:
        file.allocate(0, SIZE)
        file.put(0, np.ones(SIZE, np.uint8))
        assert (tmp_path / ".spare-x").stat().st_blocks * 512 >= SIZE
    spares.close()


FULL = """
import sys
from pathlib import Path
from paramsync.checkpoint.file_pool import FilePool
path, mb = Path(sys.argv[1]), 1 << 20
pool = FilePool(path)
for number, size in ((1, 3 * mb), (2, 3 * mb), (3, 4 * mb)):
    with pool.writing(path / f"ckpt-{number}.data", size) as file:
        file.allocate(0, size)
    if number == 2:
        pool.retire(path / "ckpt-1.data")
assert not list(path.glob(".spare-*"))
"""


@pytest.mark.slow
def test_spares_that_are_too_small_make_room_for_a_new_file(tmp_path: Path) -> None:
    run_on_small_disk(FULL, tmp_path)


def test_a_file_that_is_held_is_not_overwritten(spares: FilePool, tmp_path: Path) -> None:
    first = write(spares, tmp_path / "ckpt-1.data", 1)
    with held(tmp_path / "ckpt-1.data"):
        spares.retire(tmp_path / "ckpt-1.data")
        second = write(spares, tmp_path / "ckpt-2.data", 2)
        assert second != first
        assert (tmp_path / ".spare-ckpt-1.data").read_bytes() == bytes([1]) * SIZE
    assert write(spares, tmp_path / "ckpt-3.data", 3) == first


def test_whoever_opened_a_file_before_it_was_retired_cannot_lock_it_while_it_is_written(
    spares: FilePool, tmp_path: Path
) -> None:
    write(spares, tmp_path / "ckpt-1.data", 1)
    with (tmp_path / "ckpt-1.data").open("rb") as late:
        spares.retire(tmp_path / "ckpt-1.data")
        with spares.writing(tmp_path / "ckpt-2.data", SIZE), pytest.raises(BlockingIOError):
            fcntl.flock(late, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(late, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert not (tmp_path / "ckpt-1.data").exists()  # so that it knows


def test_a_file_somebody_made_a_link_to_is_never_overwritten(spares: FilePool, tmp_path: Path) -> None:
    write(spares, tmp_path / "ckpt-1.data", 1)
    spares.retire(tmp_path / "ckpt-1.data")
    os.link(tmp_path / ".spare-ckpt-1.data", tmp_path / "backup")
    write(spares, tmp_path / "ckpt-2.data", 2)
    spares.trim()
    assert listing(tmp_path) == ["backup", "ckpt-2.data"]
    assert (tmp_path / "backup").read_bytes() == bytes([1]) * SIZE


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


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def put(spare: Path) -> None:
        spare.unlink()
        make(spare)

    return put


HARMS: dict[str, Callable[[Path], object]] = {
    "cut": lambda spare: os.truncate(spare, 100),
    "emptied": lambda spare: os.truncate(spare, 0),
    "grown": lambda spare: os.truncate(spare, spare.stat().st_size + 1),
    "removed": Path.unlink,
    "replaced": instead(lambda path: path.write_bytes(bytes(100_000))),
    "a link outside": link_outside,
    "a link to a version": link_to_a_version,
    "a pipe": instead(os.mkfifo),
    "a directory": instead(Path.mkdir),
    "forbidden": lambda spare: spare.chmod(0),
}


def assert_sound(path: Path, *numbers: int) -> None:
    store = Store(path)
    assert [one.number for one in store.versions()] == list(numbers)
    for one in store.versions():
        opened = store.open(one)
        opened.verify(opened.entries)
        assert all(np.array_equal(opened.array(name), array) for name, array in tensors(one.number).items())


def spares_of(path: Path) -> list[Path]:
    return [file for file in path.iterdir() if file.name.startswith(".spare-")]


@pytest.mark.parametrize("harm", HARMS.values(), ids=list(HARMS))
@pytest.mark.parametrize("open_meanwhile", [True, False], ids=["a publisher that is open", "the next publisher"])
def test_a_spare_that_was_harmed_harms_no_version(
    tmp_path: Path, harm: Callable[[Path], object], open_meanwhile: bool
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
