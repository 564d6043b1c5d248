"""Which versions stay in a store, as a table of cases, and in a store whose clock goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from paramsync.errors import SettingsError, StoreError
from paramsync.store.commit import StoreWriter
from paramsync.store.retention import MOST_BY_AGE, Retention
from paramsync.store.store import Store, state_file
from tests.support.written import changing, files_of, names, version

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
    dropped = case.retention.dropped(listed, now=case.now)
    assert [at for name, at in listed if name not in dropped] == case.stay


def test_a_day_of_publications_twice_a_minute_leaves_one_an_hour() -> None:
    listed: list[tuple[str, float]] = []
    for at in range(0, int(2 * DAY), 30):
        dropped = ONE_AN_HOUR.dropped(listed, now=at)
        listed = [(name, time) for name, time in listed if name not in dropped] + [(str(at), float(at))]
    assert [time for _, time in listed] == [*(DAY + HOUR * hour for hour in range(24)), 2 * DAY - 60, 2 * DAY - 30]


def test_no_more_than_some_stay_for_their_age() -> None:
    listed = [(str(at), float(at)) for at in range(MOST_BY_AGE + 100)]
    dropped = Retention(keep=1, keep_for=DAY).dropped(listed, now=2000)
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


def test_versions_that_are_kept_for_their_age_go_when_that_is_over(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, keep=Retention(keep=1, keep_for=3600)) as writer:
        for number in (1, 2, 3):
            writer.commit(version(number), changing(number))
        assert [one.number for one in Store(tmp_path).versions()] == [1, 2, 3]
    with StoreWriter(tmp_path, keep=Retention(keep=1, keep_for=1e-9)) as writer:
        writer.commit(version(4), changing(4))
    assert [one.number for one in Store(tmp_path).versions()] == [4]


def test_a_publisher_does_not_parse_the_list_that_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may name a thousand versions, and other threads train meanwhile."""
    with StoreWriter(tmp_path, keep=2) as writer, monkeypatch.context() as patch:
        writer.commit(version(1), changing(1))
        patch.setattr(text_format, "Parse", None)
        for number in (2, 3):
            writer.commit(version(number), changing(number))
    assert [one.number for one in Store(tmp_path).versions()] == [2, 3]


def test_what_a_stranger_put_into_the_list_and_took_away_again_is_gone(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, keep=9) as writer:
        for number in (1, 2):
            writer.commit(version(number), changing(number))
        written = state_file(tmp_path).read_text()
        for name in ("stranger-1.index", "stranger-1.data-00000-of-00001"):
            (tmp_path / name).write_bytes((tmp_path / name.replace("stranger", "ckpt")).read_bytes())
        state_file(tmp_path).write_text(f'{written}all_model_checkpoint_paths: "stranger-1"\n')
        with pytest.raises(StoreError):
            writer.commit(version(1), changing(1))  # which has looked
        state_file(tmp_path).write_text(written)
        writer.commit(version(3), changing(3))
    assert [one.prefix for one in Store(tmp_path).versions()] == [f"ckpt-{number}" for number in (1, 2, 3)]
