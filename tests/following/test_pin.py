"""A pinned version serves until it is unpinned; a rollback pins the version that served before."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from paramsync.errors import SyncError, UnknownVersionError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.replica import Replica
from paramsync.status import EventKind, Status
from tests.support.followers import LONG, quarantined, serving
from tests.support.published import Publisher, ask, follower_of, proven


def test_pin_goes_back_and_stays_until_unpin(working: Follower, publisher: Publisher) -> None:
    for step in (1, 2, 3):
        publisher.publish(step)
    working.sync(timeout=LONG)
    assert working.pin(1, timeout=LONG).pinned == 1
    assert proven(*ask(working))
    assert serving(working) == 1
    publisher.publish(4)
    with pytest.raises(SyncError, match="pinned to version 1; unpin"):
        working.sync(timeout=LONG)
    assert serving(working) == 1
    status = working.unpin(timeout=LONG)
    assert (status.pinned, serving(working)) == (None, 4)


def test_a_pin_that_fails_changes_nothing(working: Follower, publisher: Publisher) -> None:
    publisher.publish_bad(1)
    publisher.publish(2)
    working.sync(timeout=LONG)
    with pytest.raises(SyncError, match=r"version 1 .* is quarantined"):
        working.pin(1, timeout=LONG)
    with pytest.raises(UnknownVersionError, match="there are: 1, 2"):
        working.pin(7, timeout=LONG)
    publisher.publish(3)
    working.sync(timeout=LONG)
    assert (working.status().pinned, serving(working)) == (None, 3)


def test_of_two_pins_in_one_look_the_later_counts_and_none_that_failed_changed_anything(
    follower: Follower, publisher: Publisher
) -> None:
    for step in (1, 2):
        publisher.publish(step)
    follower.run_once()
    publisher.publish_bad(3)
    overtaken, failed = follower.ask(Action.PIN, 1), follower.ask(Action.PIN, 3)
    follower.run_once()
    with pytest.raises(SyncError, match="was pinned to version 3 while it was being pinned to version 1"):
        overtaken.result(0)
    with pytest.raises(SyncError, match=r"version 3 .* is quarantined"):
        failed.result(0)
    assert (follower.status().pinned, serving(follower)) == (None, 2)
    overtaken, done = follower.ask(Action.PIN, 1), follower.ask(Action.PIN, 2)
    follower.run_once()
    assert done.result(0).pinned == 2
    with pytest.raises(SyncError, match="pinned to version 2"):
        overtaken.result(0)
    failed = follower.ask(Action.PIN, 3)
    follower.run_once()
    assert isinstance(failed.exception(0), SyncError)
    assert (follower.status().pinned, serving(follower)) == (2, 2)


def test_unpin_is_answered_once_the_newest_serves_though_a_pin_that_fails_interrupts_its_restore(
    publisher: Publisher,
) -> None:
    follower = Follower(Replica("m", publisher.path), poll_seconds=60.0)
    for step in (1, 2):
        publisher.publish(step)
        follower.run_once()
    pinned = follower.ask(Action.PIN, 1)
    follower.run_once()
    assert pinned.result(0).pinned == 1
    publisher.publish(3)
    interrupting: list[Future[Status]] = []

    def pin_and_leave() -> None:
        if follower.status().restoring == 3 and not interrupting:
            interrupting.append(follower.ask(Action.PIN, 2))

    follower.subscribe(pin_and_leave)
    serves: list[int | None] = []
    follower.ask(Action.UNPIN).add_done_callback(lambda _: serves.append(serving(follower)))
    follower.run_once()
    assert serves == []
    interrupting[0].cancel()
    follower.run_once()
    assert serves == [3]


# Going back -----------------------------------------------------------------------------------------------------------


def followed(publisher: Publisher, *steps: int, resident: int = 2) -> Follower:
    follower = Follower(Replica("m", publisher.path, resident=resident), poll_seconds=60.0)
    for step in steps:
        publisher.publish(step)
        follower.run_once()
    return follower


def rolled_back(follower: Follower) -> Status:
    answer = follower.ask(Action.ROLLBACK)
    follower.run_once()
    return answer.result(0)


def test_rollback_serves_what_served_before_until_it_is_unpinned(publisher: Publisher) -> None:
    follower = followed(publisher, 1, 2, 3)
    before = follower.replica.take(2)
    events = follower.subscribe(lambda: None)
    status = rolled_back(follower)
    assert (status.pinned, serving(follower)) == (2, 2)
    assert follower.replica.take() is before
    assert [one.kind for one in events.take()] == [EventKind.SWAPPED]
    publisher.publish(4)
    follower.run_once()
    assert (serving(follower), proven(*ask(follower))) == (2, True)
    follower.ask(Action.UNPIN)
    follower.run_once()
    assert serving(follower) == 4


def test_each_rollback_goes_further_back(publisher: Publisher) -> None:
    follower = followed(publisher, 1, 2, 3, 4, resident=3)
    assert [rolled_back(follower).pinned for _ in range(2)] == [3, 2]
    assert rolled_back(follower).pinned == 1  # not in memory any more, but in the store
    assert proven(*ask(follower))
    with pytest.raises(SyncError, match="model 'm' has no version to go back to: version 1 serves"):
        rolled_back(follower)


def test_after_a_restart_a_rollback_goes_to_the_next_lower_version_that_can_be_used(publisher: Publisher) -> None:
    for step in (1, 2, 3):
        publisher.publish(step)
    bad = publisher.publish_corrupt(4)
    publisher.publish(5)
    follower = follower_of(publisher.path)
    follower.run_once()
    with pytest.raises(SyncError, match="version 4 of model 'm' is quarantined"):
        rolled_back(follower)  # which nobody knew
    assert (serving(follower), quarantined(follower), follower.status().pinned) == (5, [bad.number], None)
    assert [rolled_back(follower).pinned for _ in range(3)] == [3, 2, 1]
    assert proven(*ask(follower))
    with pytest.raises(SyncError, match=r"nor in store .* or a lower one that can be used: publish"):
        rolled_back(follower)


# While something else goes on -----------------------------------------------------------------------------------------


def test_a_rollback_while_a_version_is_restored_gives_that_up(publisher: Publisher) -> None:
    follower = followed(publisher, 1, 2)
    answers: list[Future[Status]] = []
    events = follower.subscribe(lambda: None)

    def ask_once() -> None:
        if follower.status().restoring == 3 and not answers:
            answers.append(follower.ask(Action.ROLLBACK))

    follower.subscribe(ask_once)  # called in the middle of the restore
    publisher.publish(3)
    assert follower.run_once() is None
    assert (serving(follower), quarantined(follower), follower.status().restoring) == (2, [], None)
    follower.run_once()
    assert answers[0].result(0).pinned == 1
    assert serving(follower) == 1
    kinds = [(one.kind, one.version.number) for one in events.take()]
    assert kinds == [(EventKind.FOUND, 3), (EventKind.RESTORING, 3), (EventKind.SWAPPED, 1)]
    follower.ask(Action.UNPIN)
    follower.run_once()
    assert serving(follower) == 3


def test_a_drain_while_a_version_is_restored_gives_that_up(publisher: Publisher) -> None:
    follower = followed(publisher, 1)
    follower.subscribe(lambda: follower.drain() if follower.status().restoring == 2 else None)
    publisher.publish(2)
    assert follower.run_once() is None
    assert (serving(follower), follower.status().restores) == (1, 1)
