"""The watch on a store's directory, with real files, the real watchdog and the real inotify."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paramsync.sources.saved_models import highest
from paramsync.sources.watch import Watch, WatchedFolder, numbered_places, store_places
from tests.support.bells import Bell, commit, watch_on
from tests.support.programs import ROOT


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "parent" / "store"


@pytest.mark.parametrize("name", ["checkpoint", "model-1.meta"])
def test_a_commit_rings_and_so_does_the_graph_that_a_saver_writes_later(
    store: Path, watch: Watch, bell: Bell, name: str
) -> None:
    store.mkdir(parents=True)
    watch.arm()
    (store / f"{name}.tmp123").write_text("x")
    (store / f"{name}.tmp123").rename(store / name)
    assert bell.rang()
    assert bell.rings == 1


def test_other_files_do_not_ring(store: Path, watch: Watch, bell: Bell) -> None:
    store.mkdir(parents=True)
    watch.arm()
    for name in ("ckpt-1.index", "ckpt-1.data-00000-of-00001", "checkpoint.tmp123"):
        (store / name).write_text("x")
        (store / name).rename(store / f"{name}.moved")
    commit(store)  # events come in order: once this one rang, the others would have rung
    assert bell.rang()
    assert bell.rings == 1


def test_a_link_to_a_store_is_watched(tmp_path: Path, store: Path, bell: Bell) -> None:
    store.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(store)
    watch = watch_on(link, bell)
    watch.arm()
    commit(store)
    assert bell.rang()
    watch.close()


def test_a_saved_model_rings_when_it_is_complete_however_deep_that_shows(store: Path, bell: Bell) -> None:
    store.mkdir(parents=True)
    watch = Watch(lambda: numbered_places(store, highest(store)), bell.ring)
    watch.arm()
    (store / "3" / "variables").mkdir(parents=True)
    assert bell.rang()  # for 3
    for name in ("variables/variables.index", "saved_model.pb"):
        watch.arm()
        while bell.rang(0.2):
            watch.arm()
        (store / "3" / f"{name}.tmp").write_text("x")
        (store / "3" / f"{name}.tmp").rename(store / "3" / name)
        assert bell.rang()
    watch.close()


def test_a_folder_far_below_what_is_there_is_noticed_step_by_step(tmp_path: Path, bell: Bell) -> None:
    store = tmp_path / "a" / "b" / "c"
    watch = watch_on(store, bell)
    for one in (*reversed(store.parents[:2]), store):
        watch.arm()
        one.mkdir()
        assert bell.rang()
    watch.arm()
    commit(store)
    assert bell.rang()
    watch.close()


def test_places_that_are_wanted_no_more_are_left(tmp_path: Path, bell: Bell) -> None:
    wanted = [tmp_path / "a", tmp_path / "b"]
    for one in wanted:
        one.mkdir()
    watch = Watch(lambda: [place for one in wanted for place in store_places(one)], bell.ring)
    watch.arm()
    commit(tmp_path / "b")
    assert bell.rang()
    wanted.pop()
    watch.arm()
    commit(tmp_path / "b")
    commit(tmp_path / "a")
    assert bell.rang()
    assert bell.rings == 2
    watch.close()


def ignore(name: str) -> None:
    """For who listens to nothing."""


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


@pytest.mark.parametrize("moved", [False, True])  # or removed: another one may have its inode
def test_the_successor_of_a_folder_is_watched_for_all_who_listened(tmp_path: Path, moved: bool) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    bells = [Bell(), Bell()]
    watches = [watch_on(folder, bell) for bell in bells]
    for watch in watches:
        watch.arm()
    if moved:
        folder.rename(tmp_path / "former")
    else:
        folder.rmdir()
    folder.mkdir()
    assert moved or all(bell.rang() for bell in bells)
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
import os, signal, sys
from pathlib import Path
from tests.support.bells import Bell, commit, watch_on
from tests.support.programs import PATIENCE

store, bell = Path(sys.argv[1]), Bell()
watch = watch_on(store, bell)
watch.arm()
if os.fork() == 0:
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)  # a child that waits for ever ends by SIGALRM
    {call}
    os._exit(0)
assert os.wait()[1] == 0
watch.arm()
commit(store)
print("rang" if bell.rang() else "did not ring")
"""
