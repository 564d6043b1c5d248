"""What a watch listens by, with the real watchdog and the real inotify."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paramsync.sources.watch import Watch, WatchedFolder
from tests.support.bells import Bell, commit, watch_on
from tests.support.programs import ROOT


def ignore(name: str) -> None:
    """For who listens to nothing."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "parent" / "store"


def test_close_ends_the_threads_and_may_be_called_twice(store: Path, bell: Bell) -> None:
    store.mkdir(parents=True)
    WatchedFolder.join(store, ignore).leave(ignore)  # what serves all folders is there from here on
    before = set(threading.enumerate())
    watch = watch_on(store, bell)
    watch.arm()
    assert len(set(threading.enumerate()) - before) == 1
    watch.close()
    watch.close()
    assert not {thread for thread in threading.enumerate() if thread.is_alive()} - before


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


def test_the_successor_of_a_folder_that_is_moved_away_is_watched(store: Path, watch: Watch, bell: Bell) -> None:
    store.mkdir(parents=True)
    watch.arm()
    store.rename(store.with_name("former"))
    store.mkdir()
    watch.arm()  # as each look at the store does
    commit(store.with_name("former"))
    commit(store)
    assert bell.rang()
    assert bell.rings == 1


def test_where_the_thread_could_not_begin_it_begins_with_the_next_arming(
    store: Path, watch: Watch, bell: Bell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.mkdir(parents=True)
    monkeypatch.setattr(WatchedFolder, "_observer", None)
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

    WatchedFolder.join(tmp_path, ignore).leave(ignore)  # what is kept for all folders is there from here on
    before = left()
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            WatchedFolder.join(tmp_path / "missing", ignore)
    assert left() == before


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
watch = module.Watch(lambda: [module.WatchedPlace(store, re.compile("checkpoint"))], rung.set)
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


def test_a_folder_made_again_at_the_same_path_is_watched_for_all_who_listened(tmp_path: Path) -> None:
    """Also where it has the inode of the one that was removed."""
    folder = tmp_path / "store"
    folder.mkdir()
    bells = [Bell(), Bell()]
    watches = [watch_on(folder, bell) for bell in bells]
    for watch in watches:
        watch.arm()
    folder.rmdir()
    folder.mkdir()
    for watch, bell in zip(watches, bells, strict=True):
        assert bell.rang()
        watch.arm()
    commit(folder)
    for watch, bell in zip(watches, bells, strict=True):
        assert bell.rang()
        watch.close()


def test_the_successor_of_a_folder_that_is_moved_away_is_watched_for_all_who_listened(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    bells = [Bell(), Bell()]
    watches = [watch_on(folder, bell) for bell in bells]
    for watch in watches:
        watch.arm()
    folder.rename(tmp_path / "former")
    folder.mkdir()
    for _ in range(2):  # as each look at the store does
        for watch in watches:
            watch.arm()
    commit(folder)
    for watch, bell in zip(watches, bells, strict=True):
        assert bell.rang()
        watch.close()


@pytest.mark.parametrize("call", ["watch.close()", "watch.arm()", "watch_on(store, Bell()).arm()"])
def test_what_a_forked_child_does_leaves_the_parent_its_watch(tmp_path: Path, call: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKING.format(call=call), tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "rang\n"


FORKING = """
import os, sys
from pathlib import Path
from tests.support.bells import Bell, commit, watch_on

store, bell = Path(sys.argv[1]), Bell()
watch = watch_on(store, bell)
watch.arm()
if os.fork() == 0:
    {call}
    os._exit(0)
assert os.wait()[1] == 0
watch.arm()
commit(store)
print("rang" if bell.rang() else "did not ring")
"""


def test_many_folders_take_one_inotify_instance(tmp_path: Path) -> None:
    """A user may have 128 of them."""

    def instances() -> int:
        links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
        return sum("inotify" in str(link.readlink()) for link in links)

    WatchedFolder.join(tmp_path, ignore).leave(ignore)
    before = instances()
    folders = [tmp_path / str(number) for number in range(20)]
    for path in folders:
        path.mkdir()
    bell = Bell()

    def ring(name: str) -> None:
        bell.ring()

    watched = [WatchedFolder.join(folder, ring) for folder in folders]
    assert sys.version_info < (3, 11) or instances() == before  # watchdog 6 has one for each
    commit(folders[7])
    assert bell.rang()
    for folder in watched:
        folder.leave(ring)
