"""Spare files: overwritten in place when nobody holds them, few, and mapped from use to use."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from paramsync.checkpoint.data_file import MAPPED, SPARES, FilePool
from paramsync.host.memory import is_memory
from tests.support.disks import run_on_small_disk
from tests.support.spare_files import SIZE, listing, write

# What is used again ---------------------------------------------------------------------------------------------------


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


def test_there_are_few_spares_and_the_oldest_go_first(spares: FilePool, tmp_path: Path) -> None:
    for number in range(10):
        write(spares, tmp_path / f"ckpt-{number}.data", number)
    for number in range(10):
        spares.retire(tmp_path / f"ckpt-{number}.data")
        spares.trim()
    assert listing(tmp_path) == [f".spare-ckpt-{number}.data" for number in range(10 - SPARES, 10)]


def test_the_next_publisher_takes_the_spares_over(tmp_path: Path) -> None:
    first = FilePool(tmp_path)
    inodes = [write(first, tmp_path / f"ckpt-{number}.data", number) for number in (9, 10)]
    for number in (9, 10):
        first.retire(tmp_path / f"ckpt-{number}.data")
    first.close()
    second = FilePool(tmp_path)
    assert [write(second, tmp_path / f"ckpt-{number}.data", number) for number in (11, 12)] == inodes
    second.close()


def test_spares_that_are_taken_over_are_used_again_the_oldest_first(memory: Path) -> None:
    numbers = [9, 10, 11]
    first = FilePool(memory)
    inodes = [write(first, memory / f"ckpt-{number}.data", number) for number in numbers]
    for number in numbers:
        first.retire(memory / f"ckpt-{number}.data")
    first.close()
    second = FilePool(memory)
    assert [write(second, memory / f"ckpt-{number}.data", number) for number in (12, 13, 14)] == inodes
    second.close()


def test_a_spare_with_holes_gets_its_pages_before_it_is_written(tmp_path: Path) -> None:
    (tmp_path / ".spare-x").touch()
    os.truncate(tmp_path / ".spare-x", SIZE)
    spares = FilePool(tmp_path)
    with spares.writing(tmp_path / "ckpt-1.data", SIZE) as file:
        file.allocate(0, SIZE)
        file.put(0, np.ones(SIZE, np.uint8))
        assert (tmp_path / ".spare-x").stat().st_blocks * 512 >= SIZE
    spares.close()


def test_what_only_looks_like_a_spare_is_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(bytes(SIZE))
    store = tmp_path / "store"
    store.mkdir()
    (store / ".spare-link").symlink_to(outside)
    (store / ".spare-directory").mkdir()
    os.mkfifo(store / ".spare-fifo")
    spares = FilePool(store)
    write(spares, store / "ckpt-1.data", 1)
    spares.trim()
    spares.close()
    assert outside.read_bytes() == bytes(SIZE)
    assert listing(store) == [".spare-directory", ".spare-fifo", ".spare-link", "ckpt-1.data"]


def test_an_empty_file_is_no_spare(spares: FilePool, tmp_path: Path) -> None:
    with spares.writing(tmp_path / "ckpt-1.data", 0) as file:
        assert not file.content.size
    spares.retire(tmp_path / "ckpt-1.data")
    assert listing(tmp_path) == []


# What fails -----------------------------------------------------------------------------------------------------------


def test_a_new_file_that_fails_is_gone(spares: FilePool, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broadcast"), spares.writing(tmp_path / "ckpt-1.data", SIZE) as file:
        file.content[:10] = (1, 2)
    assert listing(tmp_path) == []


def test_a_spare_that_fails_is_still_one(spares: FilePool, tmp_path: Path) -> None:
    first = write(spares, tmp_path / "ckpt-1.data", 1)
    spares.retire(tmp_path / "ckpt-1.data")
    for _ in range(3):
        with pytest.raises(ValueError, match="broadcast"), spares.writing(tmp_path / "ckpt-2.data", SIZE) as file:
            file.content[:10] = (1, 2)
        assert listing(tmp_path) == [".spare-ckpt-1.data"]
    assert write(spares, tmp_path / "ckpt-2.data", 2) == first


FULL = """
import errno, sys
from pathlib import Path
from paramsync.checkpoint.data_file import FilePool
path = Path(sys.argv[1])
spares = FilePool(path)
def write(number, size):
    with spares.writing(path / f"ckpt-{number}.data", size) as file:
        file.allocate(0, size)
        file.content[:] = number
def refused(number, size):
    try:
        write(number, size)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    else:
        raise AssertionError("there was room")
MB = 1 << 20
refused(0, 9 * MB)
write(1, 3 * MB)
write(2, 3 * MB)
refused(3, 3 * MB)
spares.retire(path / "ckpt-1.data")
write(4, 4 * MB)  # the spare, which is too small, has made room
spares.retire(path / "ckpt-2.data")
spares.close()
sparse = path / ".spare-sparse"
sparse.touch()
sparse.open("r+").truncate(5 * MB)
spares = FilePool(path)
refused(5, 5 * MB)
assert (path / "ckpt-4.data").read_bytes() == bytes([4]) * 4 * MB
spares.trim(keep=0)
assert [file.name for file in path.iterdir()] == ["ckpt-4.data"]
"""


@pytest.mark.slow
def test_where_there_is_no_room_that_is_an_error_and_spares_make_room(tmp_path: Path) -> None:
    run_on_small_disk(FULL, tmp_path)


def test_an_error_that_is_not_about_room_leaves_the_spares(spares: FilePool, tmp_path: Path) -> None:
    write(spares, tmp_path / "ckpt-1.data", 1, 10 * SIZE)
    spares.retire(tmp_path / "ckpt-1.data")
    with pytest.raises(FileNotFoundError), spares.writing(tmp_path / "missing" / "ckpt-2.data", SIZE):
        pass
    assert listing(tmp_path) == [".spare-ckpt-1.data"]


# What stays mapped ----------------------------------------------------------------------------------------------------


def mapped(path: Path) -> int:
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


def opened(path: Path) -> int:
    links = Path("/proc/self/fd").iterdir()
    return sum(str(path) in str(link.readlink()) for link in links if link.is_symlink())


def test_files_stay_mapped_from_use_to_use_and_closing_lets_go_of_all(spares: FilePool, tmp_path: Path) -> None:
    for number in range(8):
        write(spares, tmp_path / f"ckpt-{number}.data", number)
        if number >= 3:
            spares.retire(tmp_path / f"ckpt-{number - 3}.data")
        spares.trim()
    assert mapped(tmp_path) == 4
    spares.close()
    assert (mapped(tmp_path), opened(tmp_path)) == (0, 0)


def test_not_more_than_some_files_stay_mapped(spares: FilePool, tmp_path: Path) -> None:
    for number in range(MAPPED + 5):
        write(spares, tmp_path / f"ckpt-{number}.data", number % 256)
        spares.trim()
    assert mapped(tmp_path) == MAPPED
    spares.retire(tmp_path / "ckpt-0.data")
    write(spares, tmp_path / "ckpt-99.data", 99)  # though it had to be opened again


def test_files_that_a_stranger_removed_are_let_go(spares: FilePool, tmp_path: Path) -> None:
    write(spares, tmp_path / "ckpt-1.data", 1)
    (tmp_path / "ckpt-1.data").unlink()
    spares.trim()
    assert (mapped(tmp_path), opened(tmp_path)) == (0, 0)


def test_pages_can_be_touched_before_they_are_written(spares: FilePool, tmp_path: Path) -> None:
    with spares.writing(tmp_path / "ckpt-1.data", SIZE) as file:
        for start, stop in ((0, 10), (50, 4097), (8000, SIZE), (SIZE - 1, SIZE)):
            file.allocate(start, stop)
        assert np.array_equal(file.content, np.zeros(SIZE, np.uint8))


def test_tmpfs_is_known_from_other_file_systems(tmp_path: Path) -> None:
    assert is_memory(Path("/dev/shm").stat())
    assert not is_memory(Path("/proc").stat())
