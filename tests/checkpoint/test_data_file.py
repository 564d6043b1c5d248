"""Files in use are locked for exactly as long as they are; one that is cut meanwhile is an error and no signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError
from paramsync.tensorbundle.index import data_file
from tests.support.checkpoints import ONES, write
from tests.support.locks import is_held

# As long as it is in use ----------------------------------------------------------------------------------------------


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


def test_two_bundles_hold_a_shard_until_both_are_gone(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", ONES)
    first, second = Bundle.open(tmp_path / "ckpt-1"), Bundle.open(tmp_path / "ckpt-1")
    del first
    assert is_held(data_file(tmp_path / "ckpt-1", 0, 1))
    assert second.array("b").tolist() == [1, 1, 1]


def test_a_checkpoint_that_is_refused_is_not_held(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", ONES)
    data = data_file(tmp_path / "ckpt-1", 0, 1)
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(CorruptCheckpointError, match="found a file of"):
        Bundle.open(tmp_path / "ckpt-1")
    assert not is_held(data)


def test_what_is_held_is_open_for_reading_only(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", ONES)
    read = Bundle.open(tmp_path / "ckpt-1")
    assert [flags & os.O_ACCMODE for flags in flags_of_open_files(tmp_path)] == [os.O_RDONLY]
    assert all(flags & os.O_CLOEXEC for flags in flags_of_open_files(tmp_path))
    del read


def flags_of_open_files(directory: Path) -> list[int]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        if link.is_symlink() and os.path.realpath(link).startswith(f"{directory}/"):
            information = Path(f"/proc/self/fdinfo/{link.name}").read_text()
            found.append(int(information.split("flags:")[1].split()[0], 8))
    return found


def test_a_file_and_a_directory_that_nobody_may_write_to_are_read(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", ONES)
    for file in tmp_path.iterdir():
        file.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        read = Bundle.open(tmp_path / "ckpt-1")
        read.verify(read.entries, finite=True)
        assert read.array("b").tolist() == [1, 1, 1]
    finally:
        tmp_path.chmod(0o755)


HOLDER = """
import sys
from pathlib import Path
from paramsync.checkpoint.reader import Bundle
array = Bundle.open(Path(sys.argv[1])).array("a")
print("held", flush=True)
sys.stdin.read()
"""

PUBLISHER = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(1)
"""


@contextmanager
def holder(prefix: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has an array of the checkpoint."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(prefix)], text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_another_process_cannot_lock_what_is_held(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", ONES)
    data = data_file(tmp_path / "ckpt-1", 0, 1)

    def other_process_is_refused() -> bool:
        return subprocess.run([sys.executable, "-c", PUBLISHER, str(data)], check=False).returncode == 1

    array = Bundle.open(tmp_path / "ckpt-1").array("a")
    assert other_process_is_refused()
    del array
    assert not other_process_is_refused()


@pytest.mark.slow
def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", ONES)
    data = data_file(tmp_path / "ckpt-1", 0, 1)
    with holder(tmp_path / "ckpt-1") as process:
        assert is_held(data)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not is_held(data)


# What is cut while it is held -----------------------------------------------------------------------------------------


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
