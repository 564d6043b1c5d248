"""Files in use are locked for exactly as long as they are; a file that changes or is cut is an error and no signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paramsync.checkpoint.data_file import DataFile, FileStamp, Ranges, open_data_file
from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import data_file, index_file
from tests.support.checkpoints import ONES, write
from tests.support.troubles import is_held, lock_exclusively


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "copied"])
def test_every_shard_is_held_as_long_as_there_is_the_bundle(tmp_path: Path, mapped: bool) -> None:
    write(tmp_path / "ckpt-1", ONES, shards=2)
    shards = [data_file(tmp_path / "ckpt-1", number, 2) for number in range(2)]
    read = Bundle.open(tmp_path / "ckpt-1", mapped=mapped)
    assert [is_held(shard) for shard in shards] == [True, True]
    del read
    assert [is_held(shard) for shard in shards] == [False, False]


def test_a_shard_is_held_as_long_as_there_is_an_array_of_it(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", ONES, shards=2)
    array = Bundle.open(tmp_path / "ckpt-1").array("b")[1:]
    assert not is_held(data_file(tmp_path / "ckpt-1", 0, 2))
    assert is_held(data_file(tmp_path / "ckpt-1", 1, 2))
    del array
    assert not is_held(data_file(tmp_path / "ckpt-1", 1, 2))


CUT = """
import os, sys
from pathlib import Path
from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError
read = Bundle.open(Path(sys.argv[1]))
os.truncate(sys.argv[2], 4096)
for ask in (read.verify, read.prefault):
    try:
        ask(["a"])
    except CorruptCheckpointError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_file_cut_before_it_is_looked_at_is_an_error_and_no_signal(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", ONES)
    data = data_file(tmp_path / "ckpt-1", 0, 1)
    arguments = [sys.executable, "-c", CUT, str(tmp_path / "ckpt-1"), str(data)]
    found = subprocess.run(arguments, check=False, capture_output=True, text=True)
    if found.returncode == -signal.SIGBUS and tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14):
        pytest.skip("this kernel cannot tell before it signals")
    expected = f"{data}: expected 20000 bytes at 0, as when it was opened"
    assert [line.split(", found")[0] for line in found.stdout.splitlines()] == [expected] * 2


TWOS = {name: array * 2 for name, array in ONES.items()}

Step = Callable[[], None]


@pytest.fixture
def at_each_hold(monkeypatch: pytest.MonkeyPatch) -> Callable[[Step, Step], list[Path]]:
    """Has a publisher take a step right before each file is opened and locked, and another one right after."""

    def arm(before: Step, after: Step) -> list[Path]:
        seen: list[Path] = []

        def open_among_others(
            path: Path,
            *,
            mapped: bool,
            frozen: Ranges | None,
            shared: Mapping[FileStamp, DataFile],
            folder: int | None,
        ) -> DataFile | None:
            seen.append(path)
            before()
            file = open_data_file(path, mapped=mapped, frozen=frozen, shared=shared, folder=folder)
            after()
            return file

        monkeypatch.setattr("paramsync.checkpoint.reader.open_data_file", open_among_others)
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


def test_a_file_that_is_locked_for_a_moment_is_tried_again(
    tmp_path: Path, at_each_hold: Callable[[Step, Step], list[Path]]
) -> None:
    write(tmp_path / "ckpt-1", ONES)
    descriptor = lock_exclusively(data_file(tmp_path / "ckpt-1", 0, 1))
    assert descriptor is not None
    seen = at_each_hold(nothing, once(lambda: os.close(descriptor)))
    assert Bundle.open(tmp_path / "ckpt-1").array("b").tolist() == [1, 1, 1]
    assert len(seen) == 2


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
