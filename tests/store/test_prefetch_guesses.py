"""Which file the next version is guessed to be written into, and how it gets into the page table, without versions."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from paramsync.checkpoint.data_file import PORTION, FileRanges, hold
from paramsync.checkpoint.seal import FileStamp
from paramsync.store import layout
from paramsync.store.prefetch import FilePrefetch, PrefetchedFile
from tests.support.checkpoints import resident
from tests.support.wide import places

SIZE = 4 << 20  # bytes of a file that is worth it


def data(folder: Path, number: int, *, spare: bool = True, size: int = SIZE) -> Path:
    path = folder / f"{'.spare-' if spare else ''}ckpt-{number}.data-00000-of-00001"
    with path.open("wb") as file:
        file.truncate(size)
    return path


def like(path: Path, *stretches: tuple[int, int]) -> FileRanges:
    found = path.stat()
    return FileRanges((found.st_dev, found.st_ino), found.st_size, list(stretches or ((0, found.st_size),)))


def taken(ahead: FilePrefetch, path: Path) -> bool:
    """Whether that file was guessed. It is let go of."""
    one = ahead.take(path.stat())
    if one is not None:
        one.close()
    return one is not None


def test_it_is_the_oldest_spare_of_the_size(memory: Path) -> None:
    files = [
        data(memory, number, size=size) for number, size in ((9, SIZE + 4096), (10, SIZE), (11, SIZE), (101, SIZE))
    ]
    ahead = FilePrefetch(memory)
    ahead.expect([like(files[1])], held=())
    assert [taken(ahead, one) for one in files] == [False, True, False, False]


def test_each_data_file_of_a_version_has_one(memory: Path) -> None:
    files = [data(memory, number, size=size) for number, size in ((1, SIZE), (2, SIZE), (3, 2 * SIZE), (4, 2 * SIZE))]
    ahead = FilePrefetch(memory)
    ahead.expect([like(files[0]), like(files[1]), like(files[2])], held=())
    assert [taken(ahead, one) for one in files] == [True, True, True, False]


def test_what_is_held_here_is_not_guessed(memory: Path) -> None:
    files = [data(memory, 1), data(memory, 2)]
    ahead = FilePrefetch(memory)
    ahead.expect([like(files[0])], held={FileStamp.of(files[0].stat()).file_id})
    assert [taken(ahead, one) for one in files] == [False, True]


def test_a_file_of_which_little_is_read_is_not_worth_it(memory: Path) -> None:
    spare = data(memory, 1)
    ahead = FilePrefetch(memory)
    ahead.expect([like(spare, (0, SIZE - 4096))], held=())
    assert ahead.is_empty
    assert not ahead.step()
    ahead.expect([like(spare, (0, 4096), (4096, SIZE))], held=())
    assert not ahead.is_empty


@pytest.mark.parametrize("listed", [True, False])
def test_what_is_listed_no_more_is_about_to_be_a_spare(memory: Path, *, listed: bool) -> None:
    path = data(memory, 1, spare=False)
    name = "ckpt-1" if listed else "ckpt-2"
    layout.state_file(memory).write_text(layout.state_text(layout.State(name, (name,))))
    ahead = FilePrefetch(memory)
    ahead.expect([like(path)], held=())
    assert taken(ahead, path) == (not listed)


def test_wrong_guesses_are_forgotten_with_the_first_right_one(memory: Path) -> None:
    spare = data(memory, 1)
    ahead = FilePrefetch(memory)

    def guessed() -> bool:
        ahead.expect([like(spare)], held=())
        return not ahead.is_empty

    def wrong() -> list[bool]:
        found = []
        for _ in range(4):
            found.append(guessed())
            ahead.settle()
        return found

    assert wrong() == [True, True, False, True]
    for _ in range(3):
        assert not guessed()
        ahead.settle()
    assert guessed()
    assert taken(ahead, spare)
    ahead.settle()
    assert wrong() == [True, True, False, True]


def test_a_large_file_is_brought_in_a_portion_at_a_time(memory: Path) -> None:
    """Between two of them somebody who rings is heard."""
    size = 2 * PORTION + SIZE
    spare = data(memory, 1, size=size)
    ahead = FilePrefetch(memory)
    ahead.expect([like(spare, (4096, size))], held=())
    steps = [(ahead.step(), resident(memory)) for _ in range(3)]
    assert steps == [(True, PORTION), (True, 2 * PORTION), (False, size - 4096)]
    found = hold(spare, mapped=True, find=ahead.take)
    assert found is not None
    found.prefault(4096, size - 4096)
    found.let_pages_go()
    assert resident(memory) == 0
    found.prefault(4096, size - 4096)
    assert resident(memory) == size - 4096


def test_what_lies_between_two_stretches_is_brought_in_when_it_is_wanted(memory: Path) -> None:
    spare = data(memory, 1, size=3 * SIZE)
    ahead = FilePrefetch(memory)
    ahead.expect([like(spare, (0, SIZE), (2 * SIZE, 3 * SIZE))], held=())
    assert ahead.step()
    assert not ahead.step()
    assert resident(memory) == 2 * SIZE
    found = hold(spare, mapped=True, find=ahead.take)
    assert found is not None
    found.prefault(0, 3 * SIZE)
    assert resident(memory) == 3 * SIZE


def test_what_was_taken_or_let_go_of_is_not_brought_in_any_further(memory: Path) -> None:
    spare = data(memory, 1, size=PORTION + SIZE)
    ahead = FilePrefetch(memory)
    for end in (lambda: taken(ahead, spare), ahead.forget):
        ahead.expect([like(spare)], held=())
        assert ahead.step()
        end()
        assert ahead.is_empty
        assert not ahead.step()
        assert resident(memory) == 0


def test_a_spare_that_is_cut_before_it_is_brought_in_is_let_go_of(memory: Path) -> None:
    spare = data(memory, 1)
    ahead = FilePrefetch(memory)
    ahead.expect([like(spare)], held=())
    assert places(spare)
    os.truncate(spare, 4096)
    assert not ahead.step()
    assert not places(spare)


def test_what_is_being_overwritten_is_not_held(memory: Path) -> None:
    spare = data(memory, 1)
    one = PrefetchedFile(spare)
    with spare.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert one.hold(spare) is None
    assert not places(spare)


def test_what_was_written_since_it_was_mapped_is_what_the_trace_is_of(memory: Path) -> None:
    spare = data(memory, 1)
    one = PrefetchedFile(spare)
    os.utime(spare, ns=(1, 1))
    path = spare.rename(memory / "ckpt-2.data-00000-of-00001")
    held = one.hold(path)
    assert held is not None
    assert held.stamp == FileStamp.of(path.stat())
    assert held.has_its_name()
