"""A pinned version serves until it is unpinned."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from paramsync.errors import SyncError, UnknownVersionError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.replica import Replica
from paramsync.status import Status
from tests.support.followers import LONG, serving
from tests.support.published import Publisher, ask, proven


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
