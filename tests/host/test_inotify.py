"""What a watch listens by, with the real inotify."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from paramsync.host import inotify
from paramsync.host.inotify import FolderListener
from paramsync.sources.watch import Watch, store_places
from tests.support.bells import SOON, Bell, commit, watch_on
from tests.support.programs import ROOT


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "parent" / "store"


def test_close_ends_the_threads_and_may_be_called_twice(store: Path, bell: Bell) -> None:
    store.mkdir(parents=True)
    before = set(threading.enumerate())
    watch = watch_on(store, bell)
    watch.arm()
    watch.close()
    watch.close()
    left = {one for one in threading.enumerate() if one.is_alive()} - before
    assert {one.name for one in left} <= {"inotify"}  # which is the one for all folders


def test_no_folder_has_a_thread_of_its_own(tmp_path: Path, bell: Bell, watch: Watch) -> None:
    watch.arm()
    running = threading.active_count()
    stores = [tmp_path / str(one) for one in range(20)]
    for one in stores:
        one.mkdir()
    many = Watch(lambda: [place for one in stores for place in store_places(one)], bell.ring)
    many.arm()
    assert threading.active_count() == running
    commit(stores[7])
    assert bell.rang()
    many.close()


def test_two_watches_on_one_folder_know_nothing_of_each_other(store: Path, watch: Watch, bell: Bell) -> None:
    store.mkdir(parents=True)
    watch.arm()
    for _ in range(3):
        other = Bell()
        second = watch_on(store, other)
        second.arm()
        commit(store)
        assert bell.rang()
        assert other.rang()
        second.close()
        commit(store)
        assert bell.rang()
        assert other.rings == 1


def test_a_folder_that_is_moved_away_rings_and_its_successor_is_watched(store: Path, watch: Watch, bell: Bell) -> None:
    store.mkdir(parents=True)
    watch.arm()
    store.rename(store.with_name("former"))
    store.mkdir()
    assert bell.rang()
    watch.arm()
    commit(store.with_name("former"))
    commit(store)
    assert bell.rang()
    assert bell.rings == 2


def test_what_is_moved_away_holds_no_ring_back(tmp_path: Path, store: Path, watch: Watch, bell: Bell) -> None:
    store.mkdir(parents=True)
    watch.arm()
    waited = []
    for number in range(5):
        (store / f"ckpt-{number}.index").write_text("x")
        (store / f"ckpt-{number}.index").rename(tmp_path / "archived")
        began = time.monotonic()
        commit(store)
        assert bell.rang()
        waited.append(time.monotonic() - began)
    assert min(waited) < 0.25, waited  # where it went would be waited for for half a second, each time


def test_a_folder_that_was_moved_away_is_listened_to_no_more(tmp_path: Path) -> None:
    """Though it may come back, and be the same."""
    (tmp_path / "a").mkdir()
    bell = Bell()
    one = FolderListener(tmp_path / "a", lambda name: bell.ring())
    assert one.is_alive()
    (tmp_path / "a").rename(tmp_path / "b")
    assert bell.rang()
    assert not one.is_alive()
    one.close()


def test_after_more_events_than_the_kernel_keeps_all_folders_are_listened_to_anew(tmp_path: Path) -> None:
    """That a folder was removed is among what is lost, and the one made in its place may have its inode."""
    quiet, busy = tmp_path / "quiet", tmp_path / "busy"
    quiet.mkdir()
    busy.mkdir()
    held, going_on = Bell(), threading.Event()
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())

    def hold(name: str) -> None:
        held.ring()
        going_on.wait(10 * SOON)  # longer than it takes to make all the files, also where the machine is busy

    bell = Bell()
    listeners = [FolderListener(busy, hold), FolderListener(quiet, lambda name: bell.ring())]
    (busy / "first").touch()
    assert held.rang()  # what was read with it is out of the kernel's queue, and nothing of what follows
    for number in range(most // 2 + 100):  # each is made, and closed
        (busy / str(number)).touch()
    going_on.set()
    assert bell.rang()
    assert not any(one.is_alive() for one in listeners)
    for one in listeners:
        one.close()


def test_where_the_thread_could_not_begin_it_begins_with_the_next_arming(
    store: Path, watch: Watch, bell: Bell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.mkdir(parents=True)
    monkeypatch.setattr(inotify._Reader, "_latest", None)
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", no_thread)
        watch.arm()
    assert "new versions are found by polling: can't start new thread" in caplog.text
    watch.arm()
    commit(store)
    assert bell.rang()


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_arming_never_raises_while_links_and_folders_take_turns(store: Path, watch: Watch) -> None:
    store.parent.mkdir()
    elsewhere = store.with_name("elsewhere")
    elsewhere.mkdir()
    ended = threading.Event()

    def turn() -> None:
        while not ended.is_set():
            store.mkdir()
            store.rmdir()
            store.symlink_to(elsewhere)
            store.unlink()

    turning = threading.Thread(target=turn)
    turning.start()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        watch.arm()
    ended.set()
    turning.join()


def test_one_that_cannot_begin_leaves_nothing_open(tmp_path: Path) -> None:
    def left() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    FolderListener(tmp_path, lambda name: None).close()  # what is kept for all folders is open from here on
    before = left()
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            FolderListener(tmp_path / "missing", lambda name: None)
    assert left() == before


def test_one_that_has_no_descriptor_leaves_none_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify._Reader, "_latest", None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    with ExitStack() as taken:
        for _ in range(max(before) + 1 - len(before)):
            taken.enter_context(Path(os.devnull).open())
        all_before = descriptors()
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(all_before) + 1, hard))
        try:
            for _ in range(5):
                with pytest.raises(OSError, match="Too many open files"):
                    FolderListener(tmp_path, lambda name: None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert descriptors() == all_before


def test_one_whose_thread_cannot_begin_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FolderListener(tmp_path, lambda name: None).close()
    monkeypatch.setattr(inotify._Reader, "_latest", None)
    before = descriptors()
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", no_thread)
        for _ in range(5):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                FolderListener(tmp_path, lambda name: None)
    assert descriptors() == before


def descriptors() -> set[int]:
    with os.scandir("/proc/self/fd") as found:
        numbers = {int(one.name) for one in found}
    return {number for number in numbers if Path(f"/proc/self/fd/{number}").exists()}


def test_without_descriptors_it_warns_once_and_watches_once_there_are_some(tmp_path: Path) -> None:
    """In a process of its own: one that watches already may need no more of them."""
    (tmp_path / "store").mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS, tmp_path / "store"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (warning,) = [line for line in ran.stderr.splitlines() if line.startswith("cannot watch")]
    assert warning.startswith(f"cannot watch {tmp_path / 'store'}, new versions are found by polling: ")
    assert ran.stdout == "rang\n"


WITHOUT_DESCRIPTORS = """
import re, resource, sys, threading
from pathlib import Path
from paramsync.sources import watch as module

store, rung = Path(sys.argv[1]), threading.Event()
watch = module.Watch(lambda: [module.Place(store, re.compile("checkpoint"))], rung.set)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
watch.arm()
watch.arm()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
watch.arm()
(store / "checkpoint").write_text("x")
print("rang" if rung.wait(10) else "did not ring")
watch.close()
"""


def test_a_fork_that_closes_its_listener_leaves_that_of_its_parent(tmp_path: Path) -> None:
    """They have one descriptor."""
    ran = subprocess.run([sys.executable, "-c", FORKED, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "heard\n"


FORKED = """
import os, sys, threading
from pathlib import Path
from paramsync.host.inotify import FolderListener

folder, heard = Path(sys.argv[1]), threading.Event()
listener = FolderListener(folder, lambda name: heard.set())
if not os.fork():
    listener.close()
    os._exit(0)
os.wait()
(folder / "file").touch()
print("heard" if heard.wait(10) and listener.is_alive() else "did not hear")
"""
