"""What holds of every store that is followed, whoever writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from paramsync.errors import NotServingError
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from tests.conformance.kinds import KINDS, SIZE, Kind
from tests.support.followers import LONG, quarantined, serving
from tests.support.programs import eventually


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    found = request.param(tmp_path / "m")
    yield found
    found.close()


def follower_of(kind: Kind, **options: object) -> Follower:
    return Follower(Replica("m", kind.path, **kind.options), poll_seconds=0.05, **options)  # type: ignore[arg-type]


def answer(follower: Follower, version: int | None = None) -> tuple[float, int]:
    """The factor that an answer shows, and the version that it names."""
    outputs, answered = follower.replica.predict({"x": np.ones([1, SIZE], np.float32)}, version=version)
    values = set(np.asarray(outputs["y"]).reshape(-1).tolist())
    assert len(values) == 1, "of more than one version"
    return values.pop(), answered.number


def test_a_store_without_a_version_is_waited_for(kind: Kind) -> None:
    with follower_of(kind) as follower:
        with pytest.raises(NotServingError):
            answer(follower)
        kind.publish(3)
        eventually(lambda: serving(follower) == 3, lambda: str(follower.status()))
        assert answer(follower) == (3.0, 3)


def test_what_is_published_meanwhile_serves_one_after_the_other(kind: Kind) -> None:
    with follower_of(kind) as follower:
        for number in (1, 2, 5, 6):
            kind.publish(number)
            eventually(lambda number=number: serving(follower) == number, lambda: str(follower.status()))  # type: ignore[misc]
            assert answer(follower) == (number, number)
        assert quarantined(follower) == []


def test_a_follower_that_starts_serves_the_newest(kind: Kind) -> None:
    for number in (2, 9, 10):
        kind.publish(number)
    with follower_of(kind) as follower:
        follower.sync(timeout=LONG)
        assert answer(follower) == (10.0, 10)


def test_where_the_newest_is_damaged_the_one_before_serves_until_it_is_whole_again(kind: Kind) -> None:
    for number in (1, 2):
        kind.publish(number)
    kind.damage(2)
    with follower_of(kind) as follower:
        eventually(lambda: serving(follower) == 1, lambda: str(follower.status()))
        eventually(lambda: quarantined(follower) == [2], lambda: str(follower.status()))
        assert answer(follower) == (1.0, 1)
        kind.repair(2)
        eventually(lambda: serving(follower) == 2, lambda: str(follower.status()))
        assert (answer(follower), quarantined(follower)) == ((2.0, 2), [])


def test_a_damaged_version_does_not_delay_the_next(kind: Kind) -> None:
    kind.publish(1)
    with follower_of(kind) as follower:
        follower.sync(timeout=LONG)
        kind.publish(2)
        kind.damage(2)
        kind.publish(3)
        eventually(lambda: serving(follower) == 3, lambda: str(follower.status()))
        assert answer(follower) == (3.0, 3)


def test_an_operator_pins_an_older_version_and_lets_it_go(kind: Kind) -> None:
    for number in (1, 2, 3):
        kind.publish(number)
    with follower_of(kind) as follower:
        follower.sync(timeout=LONG)
        follower.pin(2, timeout=LONG)
        assert answer(follower) == (2.0, 2)
        kind.publish(4)
        eventually(lambda: 4 in follower.status().in_store, lambda: str(follower.status()))
        assert answer(follower) == (2.0, 2)
        follower.unpin(timeout=LONG)
        eventually(lambda: serving(follower) == 4, lambda: str(follower.status()))


def test_two_versions_are_in_memory_where_that_is_asked_for(kind: Kind) -> None:
    for number in (1, 2, 3):
        kind.publish(number)
    with follower_of(kind, latest=2) as follower:
        follower.sync(timeout=LONG)
        eventually(lambda: 2 in follower.status().resident, lambda: str(follower.status()))
        assert [answer(follower, version) for version in (2, 3)] == [(2.0, 2), (3.0, 3)]


def test_what_serves_answers_though_its_files_are_removed(kind: Kind) -> None:
    for number in (1, 2):
        kind.publish(number)
    with follower_of(kind) as follower:
        follower.sync(timeout=LONG)
        kind.remove(1)
        kind.remove(2)
        assert answer(follower) == (2.0, 2)
