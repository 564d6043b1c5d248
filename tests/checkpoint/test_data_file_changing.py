"""What changes while it is opened is opened again as it is now; what never rests is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from paramsync.checkpoint.data_file import DataFile, FindMapped, Ranges, hold
from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError
from paramsync.tensorbundle.index import data_file, index_file
from tests.support.checkpoints import ONES, write
from tests.support.locks import is_held, lock_exclusively

TWOS = {name: array * 2 for name, array in ONES.items()}

Step = Callable[[], None]


@pytest.fixture
def at_each_hold(monkeypatch: pytest.MonkeyPatch) -> Callable[[Step, Step], list[Path]]:
    """Has a publisher take a step right before each file is opened and locked, and another one right after."""

    def arm(before: Step, after: Step) -> list[Path]:
        seen: list[Path] = []

        def hold_among_others(
            path: Path, *, mapped: bool, sealed: Ranges | None, find: FindMapped | None, folder: int | None
        ) -> DataFile | None:
            seen.append(path)
            before()
            found = hold(path, mapped=mapped, sealed=sealed, find=find, folder=folder)
            after()
            return found

        monkeypatch.setattr("paramsync.checkpoint.reader.hold", hold_among_others)
        return seen

    return arm


def nothing() -> None:
    pass


def once(step: Step) -> Step:
    left = [step]
    return lambda: left.pop()() if left else None


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_checkpoint_replaced_while_it_is_opened_is_read_as_it_is_now(
    tmp_path: Path, at_each_hold: Callable[[Step, Step], list[Path]], moment: str
) -> None:
    write(tmp_path / "ckpt-1", ONES)
    write(tmp_path / "new", TWOS)

    def replace() -> None:
        for of in (index_file, lambda prefix: data_file(prefix, 0, 1)):
            of(tmp_path / "new").replace(of(tmp_path / "ckpt-1"))

    seen = at_each_hold(once(replace), nothing) if moment == "before" else at_each_hold(nothing, once(replace))
    read = Bundle.open(tmp_path / "ckpt-1")
    read.verify(read.entries)
    assert read.array("b").tolist() == [2, 2, 2]
    assert len(seen) == 2


def test_a_file_taken_to_be_overwritten_is_not_read(
    tmp_path: Path, at_each_hold: Callable[[Step, Step], list[Path]]
) -> None:
    write(tmp_path / "ckpt-1", ONES)
    data = data_file(tmp_path / "ckpt-1", 0, 1)
    overwritten: list[int | None] = []

    def recycle() -> None:
        """The name goes first, then the lock decides, then it is overwritten, then it gets another name."""
        index_file(tmp_path / "ckpt-1").unlink()
        data.replace(tmp_path / ".spare")
        descriptor = lock_exclusively(tmp_path / ".spare")
        overwritten.append(descriptor)
        if descriptor is not None:
            os.pwrite(descriptor, b"\xff" * 20_000, 0)
            os.close(descriptor)

    for before, after in ((recycle, nothing), (nothing, recycle)):
        at_each_hold(once(before), once(after))
        with pytest.raises(CorruptCheckpointError, match="No such file"):
            Bundle.open(tmp_path / "ckpt-1")
        write(tmp_path / "ckpt-1", ONES)
    assert [one is None for one in overwritten] == [False, True]  # it is left alone once it is held


def test_a_name_taken_away_later_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", ONES)
    read = Bundle.open(tmp_path / "ckpt-1")
    data_file(tmp_path / "ckpt-1", 0, 1).replace(tmp_path / ".spare")
    index_file(tmp_path / "ckpt-1").unlink()
    assert lock_exclusively(tmp_path / ".spare") is None
    read.verify(read.entries)


def test_a_file_that_is_locked_for_a_moment_is_tried_again(
    tmp_path: Path, at_each_hold: Callable[[Step, Step], list[Path]]
) -> None:
    write(tmp_path / "ckpt-1", ONES)
    descriptor = lock_exclusively(data_file(tmp_path / "ckpt-1", 0, 1))
    assert descriptor is not None
    seen = at_each_hold(nothing, once(lambda: os.close(descriptor)))
    assert Bundle.open(tmp_path / "ckpt-1").array("b").tolist() == [1, 1, 1]
    assert len(seen) == 2


def test_a_file_that_stays_locked_is_refused_without_waiting(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", ONES)
    descriptor = lock_exclusively(data_file(tmp_path / "ckpt-1", 0, 1))
    assert descriptor is not None
    with pytest.raises(CorruptCheckpointError, match=r"ckpt-1\.index: expected a checkpoint at rest"):
        Bundle.open(tmp_path / "ckpt-1")
    os.close(descriptor)


def test_a_checkpoint_that_never_rests_is_refused_in_the_end(
    tmp_path: Path, at_each_hold: Callable[[Step, Step], list[Path]]
) -> None:
    write(tmp_path / "ckpt-1", ONES)
    data = data_file(tmp_path / "ckpt-1", 0, 1)

    def replace() -> None:
        (tmp_path / "new").write_bytes(data.read_bytes())
        (tmp_path / "new").replace(data)

    seen = at_each_hold(nothing, replace)
    with pytest.raises(CorruptCheckpointError, match="expected a checkpoint at rest, found one that changed 5 times"):
        Bundle.open(tmp_path / "ckpt-1")
    assert len(seen) == 5
    assert not is_held(data)
