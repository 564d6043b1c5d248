"""Which versions stay, and what becomes of the files of those that go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from paramsync.errors import SettingsError, UnknownVersionError
from paramsync.store.commit import StoreWriter
from paramsync.store.state_file import MOST_BY_AGE, Retention
from paramsync.store.store import Store
from tests.support.whole import assert_serves
from tests.support.written import changing, files_of, names, publish_changing, version


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


def test_a_version_pruned_since_it_was_seen_is_unknown_not_broken(tmp_path: Path) -> None:
    publish_changing(tmp_path, 1)
    store = Store(tmp_path)
    seen = store.find(1)
    publish_changing(tmp_path, 2, keep=1)
    with pytest.raises(UnknownVersionError, match=r"version 1 of .* is not there; there are: 2$"):
        store.open(seen)


HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True)
class Case:
    name: str
    retention: Retention
    times: Sequence[float]
    now: float
    stay: Sequence[float]


NEWEST = Retention(keep=2)

FOR_A_MINUTE = Retention(keep=2, keep_for=60)

ONE_AN_HOUR = Retention(keep=2, keep_for=DAY, keep_every=HOUR)

CASES = [
    Case("an empty store loses nothing", NEWEST, [], 0, []),
    Case("one less than are kept stays beside the new one", NEWEST, [1, 2, 3], 4, [3]),
    Case("the newest stay whatever their age", FOR_A_MINUTE, [1, 2], 1000, [2]),
    Case("older ones stay for their time", FOR_A_MINUTE, [1, 40, 41, 100], 100, [40, 41, 100]),
    Case("what is as old as that stays", FOR_A_MINUTE, [39, 40, 99], 100, [40, 99]),
    Case("of each period its first stays", ONE_AN_HOUR, [7200, 7201, 9000, 10800, 10801], 10802, [7200, 10800, 10801]),
    Case("a period without a version has none", ONE_AN_HOUR, [0, 36000, 36001], 36002, [0, 36000, 36001]),
    Case("the time is over for the first of a period too", ONE_AN_HOUR, [0, 3600, DAY], DAY + 1, [3600, DAY]),
    Case("a clock that was set back a little loses nothing", FOR_A_MINUTE, [130, 131, 132], 100, [130, 131, 132]),
    Case("one that was years ahead keeps nothing for years", FOR_A_MINUTE, [1e9, 1e9 + 1, 90], 100, [90]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_stays(case: Case) -> None:
    listed = [(str(at), at) for at in case.times]
    dropped = case.retention.drop(listed, now=case.now)
    assert [at for name, at in listed if name not in dropped] == case.stay


def test_no_more_than_some_stay_for_their_age() -> None:
    listed = [(str(at), float(at)) for at in range(MOST_BY_AGE + 100)]
    dropped = Retention(keep=1, keep_for=DAY).drop(listed, now=2000)
    assert dropped == {str(at) for at in range(100)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, "keep: expected at least 1 version, found 0"),
        ({"keep_for": 0}, "keep_for: expected seconds above 0, found 0"),
        ({"keep_for": float("nan")}, "keep_for: expected seconds above 0, found nan"),
        ({"keep_for": 60, "keep_every": -1}, "keep_every: expected seconds above 0, found -1"),
        ({"keep_every": 60}, "keep_every: expected keep_for with it, found 60 alone"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=f"^{message}$"):
        Retention(**options)


def test_a_store_keeps_old_versions_for_their_time_and_their_files(tmp_path: Path) -> None:
    for number, age in enumerate((200, 100, 50, 40), start=1):
        with StoreWriter(tmp_path, keep=100) as writer:
            committed = writer.commit(version(number), changing(number))
            assert committed.committed_at is not None
            record = tmp_path / f"{committed.prefix}.json"
            record.write_text(replace(committed, committed_at=committed.committed_at - age).to_json())
    with StoreWriter(tmp_path, keep=Retention(keep=1, keep_for=150, keep_every=1e9)) as writer:
        writer.commit(version(5), changing(5))
    assert [one.number for one in Store(tmp_path).versions()] == [2, 5]
    assert names(tmp_path, spares=False) == files_of(2, 5, data=1)
