"""The watch on a store's directory, with real files and the real inotify."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from paramsync.sources.saved_models import highest
from paramsync.sources.watch import Watch, numbered_places, store_places
from tests.support.bells import Bell, commit, watch_on


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "parent" / "store"


def test_a_commit_rings(store: Path, watch: Watch, bell: Bell) -> None:
    store.mkdir(parents=True)
    watch.arm()
    commit(store)
    assert bell.rang()


def test_other_files_do_not_ring(store: Path, watch: Watch, bell: Bell) -> None:
    store.mkdir(parents=True)
    watch.arm()
    for name in ("ckpt-1.index", "ckpt-1.data-00000-of-00001", "checkpoint.tmp123"):
        (store / name).write_text("x")
        (store / name).rename(store / f"{name}.moved")
    commit(store)  # events come in order: once this one rang, the others would have rung
    assert bell.rang()
    assert bell.rings == 1


def test_a_checkpoint_written_in_place_rings_when_it_is_closed(store: Path, watch: Watch, bell: Bell) -> None:
    store.mkdir(parents=True)
    commit(store)
    watch.arm()
    (store / "checkpoint").write_text("y")
    assert bell.rang()


def test_the_graph_that_a_saver_writes_after_its_commit_rings(store: Path, watch: Watch, bell: Bell) -> None:
    store.mkdir(parents=True)
    watch.arm()
    (store / "model-1.meta.tmp123").write_text("x")
    (store / "model-1.meta.tmp123").rename(store / "model-1.meta")
    assert bell.rang()
    assert bell.rings == 1


def test_a_store_that_appears_later_is_noticed_and_then_watched(store: Path, watch: Watch, bell: Bell) -> None:
    store.parent.mkdir()
    watch.arm()
    store.mkdir()
    assert bell.rang()
    watch.arm()
    commit(store)
    assert bell.rang()


def test_a_missing_parent_is_no_error_and_is_watched_once_it_is_there(store: Path, watch: Watch, bell: Bell) -> None:
    watch.arm()
    store.mkdir(parents=True)
    watch.arm()
    commit(store)
    assert bell.rang()


def test_a_store_that_was_removed_and_made_again_is_watched(store: Path, watch: Watch, bell: Bell) -> None:
    store.mkdir(parents=True)
    watch.arm()
    for _ in range(3):
        shutil.rmtree(store)
        watch.arm()
        store.mkdir()
        watch.arm()
        while bell.rang(0):  # what the making of the folder rang for
            pass
        commit(store)
        assert bell.rang()


def test_a_store_made_again_before_anybody_looked_is_watched(store: Path, watch: Watch, bell: Bell) -> None:
    store.mkdir(parents=True)
    watch.arm()
    for _ in range(5):  # the new folder may or may not get the inode of the old one
        shutil.rmtree(store)
        store.mkdir()
        assert bell.rang()  # for the end of the old one
        while not rings_for_a_commit(store, bell):  # each of its looks a follower arms again
            watch.arm()


def rings_for_a_commit(store: Path, bell: Bell) -> bool:
    commit(store)
    return bell.rang(0.2)


def test_a_link_to_a_store_is_watched(tmp_path: Path, store: Path, bell: Bell) -> None:
    store.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(store)
    watch = watch_on(link, bell)
    watch.arm()
    commit(store)
    assert bell.rang()
    watch.close()


def test_arming_again_changes_nothing_while_the_store_is_the_same(store: Path, watch: Watch, bell: Bell) -> None:
    store.mkdir(parents=True)
    watch.arm()
    running = threading.active_count()
    watch.arm()
    assert threading.active_count() == running
    commit(store)
    assert bell.rang()
    assert bell.rings == 1


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


def test_no_ring_is_lost_while_directories_are_copied(tmp_path: Path, bell: Bell) -> None:
    model, store = tmp_path / "model", tmp_path / "store"
    names = ["saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"]
    for folder in (model / "variables", model / "assets", store):
        folder.mkdir(parents=True)
    for name in names:
        (model / name).write_bytes(b"x" * 100_000)
    watch = Watch(lambda: numbered_places(store, highest(store)), bell.ring)
    for number in range(1, 31):
        watch.arm()
        copying = threading.Thread(target=shutil.copytree, args=(model, store / str(number)))
        copying.start()
        while not all((store / str(number) / name).exists() for name in names):
            assert bell.rang()
            watch.arm()
        copying.join()
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
