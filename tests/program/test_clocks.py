"""A wall clock that is wrong or jumps changes what is said of times, within reason, and nothing of what is served."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inferencer.transport.predictions import AGE, trailers
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.replica import Replica
from paramsync.store.store import record_file
from tests.support.followers import SILENT, quarantined, serving
from tests.support.programs import eventually
from tests.support.published import Publisher, ask, proven

DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched(tmp_path: Path, clock: Clock) -> Iterator[Follower]:
    follower = Follower(Replica("m", tmp_path / "m"), clock=clock, poll_seconds=0.05)
    yield follower
    follower.close()


def comes(follower: Follower, so: Callable[[int], bool], number: int) -> None:
    eventually(lambda: so(number), lambda: f"version {number}: {follower.status()}")


def test_whatever_the_clock_says_versions_are_found_refused_and_gone_back_from(
    watched: Follower, publisher: Publisher, clock: Clock
) -> None:
    watched.start(SILENT)  # so that it is the poll which finds them
    for round_, ahead in enumerate((0.0, DAY, -DAY, 400 * DAY, 0.0)):
        clock.ahead = ahead
        good = publisher.publish(10 * round_ + 1).number
        comes(watched, lambda number: serving(watched) == number, good)
        bad = publisher.publish_bad(10 * round_ + 2).number
        comes(watched, lambda number: number in quarantined(watched), bad)
        lag = watched.status().lag_seconds
        assert lag is not None
        assert max(0.0, ahead) <= lag < max(0.0, ahead) + 60
        assert proven(*ask(watched))
    assert watched.rollback(timeout=300).pinned == 31


def test_what_was_committed_in_the_future_lags_from_when_it_was_found(
    watched: Follower, publisher: Publisher, clock: Clock
) -> None:
    publisher.publish(1)
    watched.run_once()
    watched.ask(Action.PIN, 1)
    watched.run_once()
    clock.ahead = -DAY
    publisher.publish(2)
    watched.run_once()
    before = watched.status().lag_seconds
    assert before is not None
    assert 0 <= before < 60
    eventually(lambda: (watched.status().lag_seconds or 0.0) > before, lambda: f"{watched.status()}")
    watched.ask(Action.UNPIN)
    watched.run_once()
    assert (serving(watched), watched.status().lag_seconds) == (2, 0.0)


@pytest.mark.parametrize("seconds", [9e10, -9e10, 5e-324])
def test_an_age_is_told_of_any_time_that_a_record_may_have(
    watched: Follower, publisher: Publisher, seconds: float
) -> None:
    version = publisher.publish(1)
    strange = replace(version, step_done_at=seconds, committed_at=seconds)
    record_file(publisher.path, version.prefix).write_text(strange.to_json())
    watched.run_once()
    said = dict(trailers(watched.replica.serving(), time.time()))
    assert int(said[AGE]) >= 0
    assert json.loads(json.dumps(watched.status().lag_seconds)) == 0.0
