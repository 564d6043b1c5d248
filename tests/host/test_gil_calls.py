"""Files in memory are asked about without letting other threads run, and the answers are those of any other way."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paramsync.host import files, kernel
from paramsync.host.gil_calls import Folder
from paramsync.host.kernel import Kernel

_PLAIN = Kernel()
_ODD = (
    "file empty huge ancient link dangling fifo socket folder missing name-of-bytes-\udcff "
    + "x" * 255
    + " "
    + "y" * 256
)
_LARGE = 200_000  # bytes: more than are read at once


@pytest.fixture
def odd(memory: Path) -> Path:
    """A folder in memory with one of everything that a name can lead to."""
    (memory / "file").write_bytes(b"content")
    (memory / "large").write_bytes(bytes(range(250)) * (_LARGE // 250))
    for name in ("empty", "name-of-bytes-\udcff", "x" * 255):
        (memory / name).touch()
    (memory / "ancient").touch()
    os.utime(memory / "ancient", ns=(0, -123_456_789_012_345_678))
    with (memory / "huge").open("wb") as file:
        file.truncate((5 << 32) + 7)
    (memory / "link").symlink_to("file")
    (memory / "dangling").symlink_to("nowhere")
    os.mkfifo(memory / "fifo")
    (memory / "folder").mkdir()
    (memory / "folder" / "deeper").touch()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(memory / "socket"))
    return memory


@contextmanager
def promptly(folder: Path) -> Iterator[Kernel]:
    with Folder(folder).promptly():
        found = kernel.of(folder / "file")
        assert found is not kernel.of(folder / "folder" / "file")
        yield found


def outcome(call: Callable[[], object]) -> object:
    """What it returns, or all there is to know of what it raises."""
    try:
        return call()
    except OSError as error:
        return type(error), error.errno, error.strerror, error.filename


def facts(found: kernel.Facts) -> tuple[float, ...]:
    return (
        found.st_mode,
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )


@pytest.mark.parametrize("name", _ODD.split())
def test_every_call_says_what_the_usual_one_says(odd: Path, name: str) -> None:
    path = odd / name

    def by_name(calls: Kernel) -> object:
        return outcome(lambda: facts(calls.of_name(path.parent, path.name)))

    def opened(calls: Kernel) -> object:
        def look() -> object:
            descriptor = calls.open(path)
            try:
                flags = os.get_inheritable(descriptor), os.get_blocking(descriptor)
                read = outcome(lambda: (calls.read(descriptor, 3), calls.read(descriptor, 100)))
                return flags, facts(calls.of_descriptor(descriptor)), read
            finally:
                calls.close(descriptor)

        return outcome(look)

    with promptly(odd) as prompt:
        assert by_name(prompt) == by_name(_PLAIN)
        assert opened(prompt) == opened(_PLAIN)


def test_the_names_in_a_directory_are_all_there(odd: Path) -> None:
    for number in range(3000):  # more than come at once
        (odd / f"{number}-{'z' * 100}").touch()
    with promptly(odd) as prompt:
        first, again = prompt.names(odd), prompt.names(odd)
    assert sorted(first) == sorted(again) == sorted(one.name for one in odd.iterdir())
    assert len(first) == len(set(first))


def test_a_long_file_is_read_whole(odd: Path) -> None:
    with promptly(odd):
        assert files.content(odd / "large", limit=_LARGE) == (odd / "large").read_bytes()
        assert files.content(odd / "file", limit=7) == b"content"


def test_a_shared_lock_is_had_unless_somebody_has_it_alone(odd: Path) -> None:
    with promptly(odd) as prompt:
        one, other = prompt.open(odd / "file"), prompt.open(odd / "file")
        assert prompt.share(one)
        assert prompt.share(other)
        prompt.close(other)
        prompt.close(one)
        with (odd / "file").open("rb") as alone:
            fcntl.flock(alone, fcntl.LOCK_EX)
            one = prompt.open(odd / "file")
            assert not prompt.share(one)
            prompt.close(one)


def test_what_is_no_descriptor_is_refused_as_usual(odd: Path) -> None:
    with promptly(odd) as prompt:
        for calls in (prompt, _PLAIN):
            with pytest.raises(OSError, match="Bad file descriptor"):
                calls.of_descriptor(1 << 20)
            with pytest.raises(OSError, match="Bad file descriptor"):
                calls.close(1 << 20)


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """How often another thread has run."""
    count, ended = [0], threading.Event()

    def run() -> None:
        while not ended.is_set():
            count[0] += 1
            ended.wait(0.0001)

    before, thread = sys.getswitchinterval(), threading.Thread(target=run)
    sys.setswitchinterval(60.0)  # nobody is made to give the interpreter up
    thread.start()
    try:
        yield lambda: count[0]
    finally:
        ended.set()
        sys.setswitchinterval(before)
        thread.join()


def looks(calls: Kernel, folder: Path, count: Callable[[], int]) -> int:
    before = count()
    for _ in range(50):
        calls.names(folder)
        calls.of_name(folder, "file")
        descriptor = calls.open(folder / "file")
        calls.of_descriptor(descriptor)
        calls.share(descriptor)
        calls.read(descriptor, 100)
        calls.close(descriptor)
    return count() - before


def test_other_threads_do_not_run_meanwhile(odd: Path) -> None:
    with promptly(odd) as prompt, counting() as count:
        assert any(looks(_PLAIN, odd, count) for _ in range(1000))  # where the machine is busy it may take a while
        assert looks(prompt, odd, count) == 0


def test_it_is_for_what_lies_directly_in_the_directory_and_for_one_thread(odd: Path) -> None:
    with promptly(odd) as prompt:
        assert kernel.of(odd / "file") is kernel.of_directory(odd) is prompt
        assert type(kernel.of_directory(odd / "folder")) is Kernel
        for path in (
            odd,
            odd / "folder" / "deeper",
            odd / "..",
            odd.parent,
            odd.parent / f"{odd.name}2" / "file",
            Path("file"),
            Path(f"{odd}/file\0"),
        ):
            assert type(kernel.of(path)) is Kernel
        seen: list[Kernel] = []
        thread = threading.Thread(target=lambda: seen.append(kernel.of(odd / "file")))
        thread.start()
        thread.join()
        assert type(seen[0]) is Kernel
    assert type(kernel.of(odd / "file")) is Kernel
