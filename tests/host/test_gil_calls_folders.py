"""The directory whose files are asked about promptly is the one that is there: it may come, go, move and be closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paramsync.host import files, gil_calls, kernel
from paramsync.host.gil_calls import Folder
from paramsync.host.kernel import Kernel
from paramsync.host.memory import is_memory
from paramsync.sources.identity import StoreListing
from tests.support.programs import ROOT


def test_paths_may_be_relative(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (memory / "folder").mkdir()
    (memory / "file").write_bytes(b"content")
    monkeypatch.chdir(memory)
    with Folder(Path()).promptly():
        assert type(kernel.of(Path("file"))) is not Kernel
        assert files.content(Path("file"), limit=7) == b"content"
        assert type(kernel.of(Path("folder/deeper"))) is Kernel
        assert type(kernel.of(memory / "file")) is Kernel


def test_a_directory_that_is_not_in_memory_or_not_there_is_asked_about_as_usual(tmp_path: Path, memory: Path) -> None:
    assert not is_memory(Path("/proc").stat())
    for path in (Path("/proc"), tmp_path / "nowhere", memory / "nowhere"):
        with Folder(path).promptly():
            assert type(kernel.of(path / "version")) is Kernel


def test_a_system_without_these_calls_or_that_forbids_them_is_asked_as_usual(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*arguments: object) -> int:
        return -1

    for functions in ({}, dict.fromkeys(gil_calls._FUNCTIONS, refuses)):
        monkeypatch.setattr(gil_calls, "_FUNCTIONS", functions)
        with Folder(memory).promptly():
            assert type(kernel.of(memory / "version")) is Kernel


def test_a_directory_that_comes_goes_and_is_replaced_is_the_one_that_is_there(memory: Path) -> None:
    path = memory / "store"
    folder = Folder(path)
    with folder.promptly():
        assert StoreListing(path).of_file("one") is None
    path.mkdir()
    (path / "one").touch()
    with folder.promptly():
        assert StoreListing(path).of_file("one") is not None
        path.rename(memory / "before")
        path.mkdir()
        assert StoreListing(path).of_file("one") is not None  # of the one that was there at first
    with folder.promptly():
        assert StoreListing(path).of_file("one") is None
        path.rmdir()
        assert StoreListing(path).of_file("one") is None


def test_a_store_behind_a_link_is_followed_to_where_it_leads_now(memory: Path) -> None:
    for name in ("a", "b"):
        (memory / name).mkdir()
        (memory / name / "of").write_text(name)
    link = memory / "link"
    folder = Folder(link)
    for name in ("a", "b", "a"):
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        with folder.promptly():
            assert type(kernel.of(link / "of")) is not Kernel
            assert files.content(link / "of", limit=1) == name.encode()


def test_a_link_that_is_turned_while_it_is_followed_is_followed_to_where_it_leads_afterwards(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (memory / name).mkdir()
        (memory / name / "of").write_text(name)
    link, opening = memory / "link", os.open

    def turn(name: str) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def turned(path: Path, flags: int) -> int:
        turn("b")
        try:
            return opening(path, flags)
        finally:
            turn("a")

    turn("a")
    folder = Folder(link)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", turned)
        with folder.promptly():
            assert files.content(link / "of", limit=1) == b"b"
    with folder.promptly():
        assert files.content(link / "of", limit=1) == b"a"


_LISTS = """
import os, sys
from pathlib import Path
from paramsync.host import files
from paramsync.host.gil_calls import Folder
os.seteuid(int(sys.argv[2]))
path = Path(sys.argv[1])
folder = Folder(path)
with folder.promptly():
    assert files.names(path) == ["file"]
path.chmod(0o311)
with folder.promptly():
    try:
        files.names(path)
    except PermissionError:
        raise SystemExit(7)
"""


def test_a_directory_that_may_be_listed_no_more_is_not(memory: Path) -> None:
    store = memory / "store"
    store.mkdir()
    (store / "file").touch()
    user = 65534 if os.geteuid() == 0 else os.geteuid()  # permissions do not concern root
    memory.chmod(0o755)
    os.chown(store, user, -1)
    command = [sys.executable, "-c", _LISTS, str(store), str(user)]
    assert subprocess.run(command, check=False, cwd=ROOT).returncode == 7


def test_the_child_of_a_fork_lists_on_its_own(memory: Path) -> None:
    for number in range(3000):
        (memory / f"{number}").touch()
    with Folder(memory).promptly():
        child = os.fork()
        counts = {len(files.names(memory)) for _ in range(200)}
        if not child:
            os._exit(0 if counts == {3000} else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert counts == {3000}


def test_no_mount_has_a_name_that_is_taken_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    start = "23 22 0:999 / /"
    names = ["a\r\rb", "a\vb\fc", "a\u2028b", f"a\r1\u00a02\u00a0{number}\u00a0-\u00a0tmpfs", "-", "-\\040tmpfs"]
    lines = [f"{start}{name} rw,nosuid shared:3 - ext4 /dev/a rw" for name in names]
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr("paramsync.host.memory._MOUNTS", mounts)

    def is_said(*said: str) -> bool:
        mounts.write_bytes("".join(f"{line}\n" for line in said).encode())
        return is_memory(tmp_path.stat())

    own = f"24 22 {number} / /store rw master:1 propagate_from:2 - {{}} none rw"
    assert is_said(*lines, own.format("tmpfs"))
    assert is_said(own.format("tmpfs").replace(" master:1 propagate_from:2", ""))
    assert not is_said(*lines, own.format("ext4"))
    assert not is_said(*lines, "", "odd")


def test_no_descriptor_is_given_to_other_programs(memory: Path) -> None:
    with Folder(memory).promptly():
        files.names(memory)
        entries = [one for one in Path("/proc/self/fd").iterdir() if one.is_dir() and one.resolve() == memory]
        assert [os.get_inheritable(int(one.name)) for one in entries] == [False]


def test_no_descriptor_is_left_open(memory: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(20):
        folder = Folder(memory / "store")
        for _ in range(3):
            (memory / "store").mkdir()
            (memory / "store" / "file").touch()
            with folder.promptly():
                for name in ("file", "missing", ".."):
                    files.has(memory / "store" / name, b"")
            (memory / "store" / "file").unlink()
            (memory / "store").rmdir()
    del folder
    assert descriptors() == before
