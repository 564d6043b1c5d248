"""A thread that works for later gives way where it may be put off, in its own block and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paramsync.host import files, yielding


def test_a_thread_gives_way_in_its_own_block_only() -> None:
    waits: list[int] = []

    def wait() -> None:
        waits.append(threading.get_ident())

    yielding.give()
    with yielding.giving(wait):
        yielding.give()
        yielding.give()
        other = threading.Thread(target=yielding.give)
        other.start()
        other.join()
    yielding.give()
    assert waits == [threading.get_ident()] * 2


def test_each_thread_waits_as_its_own_block_says() -> None:
    waits: list[str] = []
    both = threading.Barrier(2, timeout=10)

    def other() -> None:
        with yielding.giving(lambda: waits.append("other")):
            both.wait()
            yielding.give()
            both.wait()

    thread = threading.Thread(target=other)
    thread.start()
    with yielding.giving(lambda: waits.append("this")):
        both.wait()
        both.wait()
        yielding.give()
    thread.join()
    assert waits == ["other", "this"]


def test_what_ends_a_block_early_ends_giving_way() -> None:
    waits: list[None] = []

    def interrupted() -> None:
        waits.append(None)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), yielding.giving(interrupted):
        yielding.give()
    yielding.give()
    with pytest.raises(RuntimeError, match="gone"), yielding.giving(lambda: waits.append(None)):
        raise RuntimeError("gone")
    yielding.give()
    assert waits == [None]


def opened(path: Path) -> bool:
    with files.regular(path):
        return True


@pytest.mark.parametrize(
    ("look", "seen"),
    [
        (lambda path: files.names(path.parent), ["file"]),
        (lambda path: files.content(path, limit=10), b"content"),
        (opened, True),
    ],
    ids=["names", "content", "regular"],
)
def test_before_each_look_at_files_others_go_first(
    tmp_path: Path, look: Callable[[Path], object], seen: object
) -> None:
    path = tmp_path / "file"
    waits: list[int] = []
    with yielding.giving(lambda: waits.append(path.write_bytes(b"content"))):
        assert look(path) == seen
    assert len(waits) == 1
