"""Going back is a reference: at once, whatever the follower is at, and it stays there."""

from __future__ import annotations

import statistics
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest

from paramsync.errors import SyncError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.replica import Replica
from paramsync.status import Back, EventKind, Status
from tests.support.followers import LONG, SILENT, quarantined, serving
from tests.support.published import Publisher, ask, follower_of, proven

X = {"x": np.ones([3, 2], np.float32)}


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


def test_the_version_that_was_named_is_gone_back_to_whatever_came_meanwhile(publisher: Publisher) -> None:
    follower = followed(publisher, 1, 2, 3, resident=3)
    assert follower.status().back == Back(2, served=True)
    publisher.publish(4)
    follower.run_once()
    answer = follower.ask(Action.ROLLBACK, 2)
    follower.run_once()
    assert (answer.result(0).pinned, serving(follower)) == (2, 2)
    assert follower.status().back == Back(1, served=True)


def test_after_a_restart_the_status_says_that_the_next_lower_version_did_not_serve(publisher: Publisher) -> None:
    for step in (1, 2):
        publisher.publish(step)
    follower = follower_of(publisher.path)
    follower.run_once()
    assert follower.status().back == Back(1, served=False)
    rolled_back(follower)
    assert follower.status().back is None


def test_each_rollback_goes_further_back(publisher: Publisher) -> None:
    follower = followed(publisher, 1, 2, 3, 4, resident=3)
    assert [rolled_back(follower).pinned for _ in range(2)] == [3, 2]
    assert rolled_back(follower).pinned == 1  # not in memory any more, but in the store
    assert proven(*ask(follower))
    with pytest.raises(SyncError, match="model 'm' has no version to go back to: version 1 serves"):
        rolled_back(follower)


def test_after_a_rollback_what_comes_next_can_be_rolled_back_too(publisher: Publisher) -> None:
    follower = followed(publisher, 1, 2)
    rolled_back(follower)
    follower.ask(Action.UNPIN)
    follower.run_once()
    assert serving(follower) == 2
    assert rolled_back(follower).pinned == 1


def test_after_a_pin_that_was_taken_back_rollbacks_go_back_further_each_time(publisher: Publisher) -> None:
    follower = followed(publisher, 1, 2, 3, resident=3)
    for action, number in ((Action.PIN, 2), (Action.UNPIN, None)):
        follower.ask(action, number)
        follower.run_once()
    assert serving(follower) == 3
    assert [rolled_back(follower).pinned for _ in range(2)] == [2, 1]


def test_where_nothing_served_there_is_nothing_to_go_back_to(publisher: Publisher, follower: Follower) -> None:
    with pytest.raises(SyncError, match="no version to go back to: none serves"):
        rolled_back(follower)


def test_a_version_that_is_gone_is_named_where_nothing_else_is_left(publisher: Publisher) -> None:
    follower = followed(publisher, 1, 2, resident=1)
    for step in range(3, 9):
        publisher.publish(step)
    (answer,) = [follower.ask(Action.PIN, 2)]
    follower.run_once()
    with pytest.raises(SyncError, match="gone are: 1"):
        rolled_back(follower)
    assert answer.exception(0) is None


def test_a_store_that_started_over_can_be_gone_back_from(publisher: Publisher) -> None:
    follower = followed(publisher, 7)
    follower.replica.take()
    publisher.close()
    for one in publisher.path.iterdir():
        one.unlink()
    again = Publisher(publisher.path)
    again.publish(1)
    follower.run_once()
    assert serving(follower) == 1
    assert rolled_back(follower).pinned == 7
    again.close()


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


def test_after_a_restart_a_rollback_waits_for_a_store_that_cannot_be_read(publisher: Publisher) -> None:
    for step in (1, 2):
        publisher.publish(step)
    follower = follower_of(publisher.path)
    follower.run_once()
    said = (publisher.path / "checkpoint").read_bytes()
    (publisher.path / "checkpoint").write_text("garbage {{{")
    answer = follower.ask(Action.ROLLBACK)
    follower.run_once()
    assert not answer.done()
    (publisher.path / "checkpoint").write_bytes(said)
    follower.run_once()
    assert answer.result(0).pinned == 1


def test_a_rollback_needs_no_store(publisher: Publisher) -> None:
    follower = followed(publisher, 1, 2)
    (publisher.path / "checkpoint").write_text("garbage {{{")
    assert rolled_back(follower).pinned == 1


def test_from_call_to_served_it_takes_less_than_ten_milliseconds(publisher: Publisher) -> None:
    follower = followed(publisher, 1, 2)
    follower.start(SILENT)
    took = []
    for _ in range(11):
        began = time.monotonic()
        follower.rollback(timeout=LONG)
        assert serving(follower) == 1
        took.append(time.monotonic() - began)
        follower.pin(2, timeout=LONG)
    assert statistics.median(took) < 0.01
    follower.close()


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


def test_a_pin_holds_against_everything_that_is_published_meanwhile(publisher: Publisher) -> None:
    follower = followed(publisher, 1, 2)
    follower.start(SILENT)
    begin = threading.Barrier(2)
    stop = threading.Event()
    wrong: list[int] = []

    def publish() -> None:
        begin.wait(LONG)
        for step in range(3, 23):
            publisher.publish(step)
            follower.notify()

    def watch() -> None:
        while not stop.is_set():
            seen, number = ask(follower)
            if number != 1 or not proven(seen, number):
                wrong.append(number)

    publishes = threading.Thread(target=publish)
    publishes.start()
    begin.wait(LONG)
    assert follower.pin(1, timeout=LONG).pinned == 1
    watches = threading.Thread(target=watch)
    watches.start()
    publishes.join(LONG)
    with pytest.raises(SyncError, match="pinned to version 1"):
        follower.sync(timeout=LONG)
    stop.set()
    watches.join(LONG)
    assert wrong == []
    follower.close()


def test_a_rollback_after_a_restore_that_failed_answers_from_the_version_before(publisher: Publisher) -> None:
    follower = followed(publisher, 1, 2)
    publisher.publish_bad(3)
    follower.run_once()
    assert rolled_back(follower).pinned == 1
    outputs, version = follower.replica.predict(X)
    assert version.number == 1
    assert proven(outputs["seen"].numpy().tolist(), 1)
