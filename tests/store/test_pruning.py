"""What goes from a store with new versions, and what stays: what others put there, and what is in use."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from paramsync.errors import UnknownVersionError
from paramsync.store import store
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.support.opened_files import opened
from tests.support.rewritten import write
from tests.support.whole import assert_serves
from tests.support.written import changing, files_of, names, publish_changing, version


def test_only_the_newest_versions_are_kept(tmp_path: Path) -> None:
    publish_changing(tmp_path, 1, 2, 3, 4, keep=2)
    assert names(tmp_path, spares=False) == files_of(3, 4, data=1)
    assert [one.number for one in Store(tmp_path).versions()] == [3, 4]
    publish_changing(tmp_path, 5, keep=1)
    assert names(tmp_path, spares=False) == files_of(5, data=1)
    assert_serves(tmp_path, 5)


@pytest.mark.parametrize("keep", [1, 2, 3, 4, 5, 6, 7, 100])
def test_as_many_versions_are_kept_as_asked_for(tmp_path: Path, keep: int) -> None:
    for number in range(1, 7):
        publish_changing(tmp_path, number, keep=keep)
        kept = range(max(1, number - keep + 1), number + 1)
        assert [one.number for one in Store(tmp_path).versions()] == list(kept)
        assert names(tmp_path, spares=False) == files_of(*kept, data=1)


def test_a_graph_goes_with_the_last_version_that_has_it(tmp_path: Path) -> None:
    publish_changing(tmp_path, 1, 2, keep=2, graph="aa")
    publish_changing(tmp_path, 3, keep=2, graph="bb")
    assert {"graph-aa.pb", "graph-bb.pb"} <= names(tmp_path, spares=False)
    publish_changing(tmp_path, 4, keep=2, graph="bb")
    assert names(tmp_path, spares=False) == files_of(3, 4, data=1) | {"graph-bb.pb"}


def test_a_graph_waits_for_its_first_version(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, keep=1) as writer:
        writer.add_graph("aa", b"graph")
        writer.commit(version(1, graph="aa"), changing(1))
        writer.add_graph("bb", b"graph")
        writer.commit(version(2), changing(2))
        assert names(tmp_path, spares=False) == files_of(2, data=1) | {"graph-bb.pb"}
        writer.commit(version(3, graph="bb"), changing(3))
        assert names(tmp_path, spares=False) == files_of(3, data=1) | {"graph-bb.pb"}


def test_a_new_publisher_clears_away_what_a_killed_one_left(tmp_path: Path) -> None:
    publish_changing(tmp_path, 1, 2)
    write(tmp_path / "ckpt-3", changing(3))
    for name in (".tmp-ckpt-4.data-00000-of-00001", ".tmp-checkpoint", ".unlisted-ckpt-3", ".unlisted-ckpt-2"):
        (tmp_path / name).touch()
    StoreWriter(tmp_path).close()
    assert names(tmp_path, spares=False) == files_of(1, 2, data=1)


def test_what_others_put_there_stays(tmp_path: Path) -> None:
    for name in ("ckpt-best.index", "ckpt-99.index", "graph-ff.pb", "model.meta", "README"):
        (tmp_path / name).touch()
    (tmp_path / "training").mkdir()
    publish_changing(tmp_path, 1, 2, 3, keep=1)
    others = {"ckpt-best.index", "ckpt-99.index", "graph-ff.pb", "model.meta", "README", "training"}
    assert names(tmp_path, spares=False) == files_of(3, data=1) | others


def test_what_cannot_be_removed_now_is_removed_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with StoreWriter(tmp_path, keep=1) as writer:
        writer.commit(version(1), changing(1))
        stuck = tmp_path / "ckpt-1.data-more"
        stuck.mkdir()  # unlink cannot remove it
        writer.commit(version(2), changing(2))
        assert "old versions were not removed" in caplog.text
        assert_serves(tmp_path, 2)
        stuck.rmdir()
        writer.commit(version(3), changing(3))
    assert names(tmp_path, spares=False) == files_of(3, data=1)


def test_a_bundle_that_is_open_outlives_its_version(tmp_path: Path) -> None:
    publish_changing(tmp_path, 1)
    store = Store(tmp_path)
    opened = store.open(store.find(1))
    publish_changing(tmp_path, 2, keep=1)
    opened.verify(opened.entries)
    assert np.array_equal(opened.array("kernel"), changing(1)["kernel"])


def test_a_version_pruned_since_it_was_seen_is_unknown_not_broken(tmp_path: Path) -> None:
    publish_changing(tmp_path, 1)
    store = Store(tmp_path)
    seen = store.find(1)
    publish_changing(tmp_path, 2, keep=1)
    with pytest.raises(UnknownVersionError, match=r"version 1 of .* is not there; there are: 2$"):
        store.open(seen)


def test_followers_always_find_a_whole_version(tmp_path: Path) -> None:
    """A publisher that keeps one version takes every other away under those who follow it."""
    publish_changing(tmp_path, 0, keep=1)
    done = threading.Event()
    problems: list[Exception] = []
    seen: set[int] = set()

    def follow() -> None:
        store = Store(tmp_path)
        while not done.is_set():
            try:
                latest = store.latest()
                assert latest is not None
                opened = store.open(latest)
                opened.verify(opened.entries)
                assert opened.array("kernel")[0, 0] == latest.number
                seen.add(latest.number)
            except UnknownVersionError:
                continue
            except Exception as error:  # noqa: BLE001, whatever it is, the test must know
                problems.append(error)
                return

    followers = [threading.Thread(target=follow) for _ in range(3)]
    for follower in followers:
        follower.start()
    publish_changing(tmp_path, *range(1, 120), keep=1)
    done.set()
    for follower in followers:
        follower.join()
    assert not problems
    assert len(seen) > 1


@pytest.mark.parametrize("listed", [[*range(1, 1001)], [*range(1, 1001), 2000]])
def test_versions_that_are_listed_and_gone_cost_no_file_operation(tmp_path: Path, listed: list[int]) -> None:
    publish_changing(tmp_path, 2000)
    entries = "".join(f'all_model_checkpoint_paths: "ckpt-{number}"\n' for number in listed)
    store.state_file(tmp_path).write_text(f'model_checkpoint_path: "ckpt-2000"\n{entries}')
    with opened() as names, StoreWriter(tmp_path) as writer:
        assert [one.number for one in Store(tmp_path).versions()] == [2000]
        writer.commit(version(2001), changing(2001))
    gone = {f"ckpt-{number}" for number in range(1, 1001)}
    assert [name for name in names if name.removeprefix(".unlisted-").partition(".")[0] in gone] == []
    assert [one.number for one in Store(tmp_path).versions()] == [2000, 2001]


def test_many_versions_that_go_at_once_leave_nothing(tmp_path: Path) -> None:
    publish_changing(tmp_path, *range(1, 31), keep=100)
    publish_changing(tmp_path, 31, keep=1)
    assert names(tmp_path, spares=False) == files_of(31, data=1)
