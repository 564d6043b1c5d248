"""A spare file that somebody holds, has a link to or put there is left alone."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paramsync.checkpoint.data_file import FilePool
from tests.support.spare_files import SIZE, held, listing, write


def test_a_file_that_is_held_is_not_overwritten(spares: FilePool, tmp_path: Path) -> None:
    first = write(spares, tmp_path / "ckpt-1.data", 1)
    with held(tmp_path / "ckpt-1.data"):
        spares.retire(tmp_path / "ckpt-1.data")
        second = write(spares, tmp_path / "ckpt-2.data", 2)
        assert second != first
        assert (tmp_path / ".spare-ckpt-1.data").read_bytes() == bytes([1]) * SIZE
    assert write(spares, tmp_path / "ckpt-3.data", 3) == first


def test_a_spare_that_is_held_does_not_hide_another(spares: FilePool, tmp_path: Path) -> None:
    inodes = [write(spares, tmp_path / f"ckpt-{number}.data", number) for number in (1, 2)]
    with held(tmp_path / "ckpt-1.data"):
        for number in (1, 2):
            spares.retire(tmp_path / f"ckpt-{number}.data")
        assert write(spares, tmp_path / "ckpt-3.data", 3) == inodes[1]


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


def test_a_spare_that_a_stranger_removed_or_replaced_is_forgotten(spares: FilePool, tmp_path: Path) -> None:
    for number in (1, 2):
        write(spares, tmp_path / f"ckpt-{number}.data", number)
        spares.retire(tmp_path / f"ckpt-{number}.data")
        (tmp_path / f".spare-ckpt-{number}.data").unlink()
    (tmp_path / ".spare-ckpt-2.data").write_bytes(bytes(SIZE))
    write(spares, tmp_path / "ckpt-3.data", 3)
    spares.trim()
    write(spares, tmp_path / "ckpt-4.data", 4)


def test_a_file_that_got_the_number_of_a_removed_spare_is_not_taken_for_it(tmp_path: Path) -> None:
    first = FilePool(tmp_path)
    write(first, tmp_path / "ckpt-1.data", 1)
    first.retire(tmp_path / "ckpt-1.data")
    first.close()
    spares = FilePool(tmp_path)  # knows of the spare, has not opened it
    (tmp_path / ".spare-ckpt-1.data").unlink()
    for number in range(2, 12):  # file systems give numbers of removed files to new ones
        write(spares, tmp_path / f"ckpt-{number}.data", number)
    for number in range(2, 12):
        assert (tmp_path / f"ckpt-{number}.data").read_bytes() == bytes([number]) * SIZE
    spares.close()


HOLD = """
import fcntl, signal, sys
file = open(sys.argv[1], "rb")
fcntl.flock(file, fcntl.LOCK_SH)
print("held", flush=True)
signal.pause()
"""


@pytest.mark.slow
def test_a_killed_follower_holds_nothing(spares: FilePool, tmp_path: Path) -> None:
    first = write(spares, tmp_path / "ckpt-1.data", 1)
    command = [sys.executable, "-c", HOLD, str(tmp_path / "ckpt-1.data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"held\n"
        spares.retire(tmp_path / "ckpt-1.data")
        assert write(spares, tmp_path / "ckpt-2.data", 2) != first
        follower.send_signal(signal.SIGKILL)
        follower.wait()
        assert write(spares, tmp_path / "ckpt-3.data", 3) == first
