"""A request for a version is answered when the version serves, or with the reason why it will not."""

from __future__ import annotations

import errno
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from paramsync.errors import NotServingError, SyncError, UnknownVersionError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action, OperatorRequest
from paramsync.following.pins_file import Change
from paramsync.status import EventKind, Quarantined, State, Status
from paramsync.version import Version
from tests.support.followers import LONG, serving
from tests.support.programs import eventually
from tests.support.published import Publisher, ask, proven


def test_sync_to_a_version_still_to_come_says_what_is_there_when_time_is_up(
    working: Follower, publisher: Publisher
) -> None:
    publisher.publish(3)
    working.sync(timeout=LONG)
    with pytest.raises(TimeoutError, match=r"version 9 of model 'm' did not come to serve within 0.5 s: .* is 3"):
        working.sync(9, timeout=0.5)


def test_sync_waits_for_a_version_still_to_come(working: Follower, publisher: Publisher) -> None:
    publisher.publish(3)
    answer = working.ask(Action.SYNC, 4)
    working.sync(timeout=LONG)
    assert not answer.done()
    publisher.publish(5)
    working.notify()
    status = answer.result(LONG)
    assert status.serving is not None
    assert status.serving.number == 5  # it overtook the one asked for


def test_each_sync_to_a_bad_version_tries_it_once_more_and_says_why_not(
    working: Follower, publisher: Publisher
) -> None:
    publisher.publish(1)
    publisher.publish_bad(2)
    events = working.subscribe(lambda: None)
    for _ in range(2):
        with pytest.raises(SyncError, match=r"version 2 of model 'm' is quarantined: .*finite values"):
            working.sync(timeout=LONG)
        assert EventKind.QUARANTINED in [one.kind for one in events.take()]
    assert serving(working) == 1


def test_sync_to_an_older_version_says_to_pin(working: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    publisher.publish(2)
    working.sync(timeout=LONG)
    with pytest.raises(SyncError, match="older than version 2, which serves; pin it to go back"):
        working.sync(1, timeout=LONG)


def test_sync_to_a_version_that_never_was_lists_what_there_is(working: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    working.sync(timeout=LONG)
    publisher.publish_bad(5)  # so that what serves is still below the one asked for
    with pytest.raises(UnknownVersionError, match=r"version 3 .* there are: 1, 5"):
        working.sync(3, timeout=LONG)
    publisher.publish(6)
    working.sync(timeout=LONG)
    with pytest.raises(UnknownVersionError, match=r"version 3 .* there are: 1, 5, 6"):
        working.sync(3, timeout=LONG)


def test_a_look_that_began_before_a_sync_does_not_answer_it(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    asked: list[Future[Status]] = []

    def publish_and_ask() -> None:
        if not asked:
            publisher.publish(2)
            asked.append(follower.ask(Action.SYNC))

    follower.subscribe(publish_and_ask)  # called in the middle of the look that finds version 1
    follower.run_once()
    assert not asked[0].done()
    follower.run_once()
    status = asked[0].result(0)
    assert status.serving is not None
    assert status.serving.number == 2


@pytest.mark.parametrize("action", [Action.PIN, Action.LABEL])
def test_a_change_is_acknowledged_only_once_it_holds(
    follower: Follower, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, action: Action
) -> None:
    for number in (1, 2):
        publisher.publish(number)
    follower.run_once()

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patched:
        patched.setattr(follower.replica.source, "restore", fails)
        answer = follower.ask(action, 1, "stable")
        follower.run_once()
        assert not answer.done()
    eventually(lambda: [follower.run_once(), answer.done()][1], lambda: "an answer, at the next try")
    assert answer.result(0).pinned == (1 if action is Action.PIN else None)
    assert follower.replica.take(label="" if action is Action.PIN else "stable").version.number == 1


def test_draining_refuses_what_is_asked_and_goes_on_serving(working: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    working.sync(timeout=LONG)
    waiting = working.ask(Action.SYNC, 99)
    working.drain()
    for answer in (waiting, working.ask(Action.SYNC)):
        with pytest.raises(NotServingError, match="stopping"):
            answer.result(LONG)
    assert working.status().state is State.DRAINING
    assert proven(*ask(working))


# When a request is fulfilled -----------------------------------------------------------------------------------------


def number(at: int) -> Version:
    return Version(number=at, step=at, prefix=f"ckpt-{at}", step_done_at=1.0, snapshot_at=1.0)


def status(serving: int | None = None, *, bad: tuple[int, ...] = (), **more: Any) -> Status:
    cases = tuple(Quarantined(number=at, reason="NaN", since=0.0) for at in bad)
    served = None if serving is None else number(serving)
    return Status(model="m", store=Path("/s"), serving=served, quarantined=cases, **more)


BRINGS = Change(pinned=2, labels={"stable": 1})


@pytest.mark.parametrize(
    ("request_", "now", "published", "expected"),
    [
        (OperatorRequest(Action.PREPARE, change=BRINGS), status(resident=(2, 1)), [1, 2], True),
        (OperatorRequest(Action.PREPARE, change=BRINGS), status(resident=(2,)), [1, 2], False),
        (OperatorRequest(Action.PREPARE, change=BRINGS), status(resident=(2,), bad=(1,)), [1, 2], SyncError),
        (OperatorRequest(Action.PREPARE, change=BRINGS), status(resident=(2,)), [2], UnknownVersionError),
        (OperatorRequest(Action.PREPARE, change=Change(latest=2)), status(resident=(3,)), [1, 2, 3], False),
        (OperatorRequest(Action.PREPARE, change=Change(latest=2)), status(resident=(3, 1), bad=(2,)), [1, 2, 3], True),
        (OperatorRequest(Action.PREPARE, change=Change(latest=2)), status(store_lost=True), None, True),
        (OperatorRequest(Action.PREPARE, change=Change(latest=2)), status(), None, False),
        (OperatorRequest(Action.BEGIN), status(3), [3], True),
        (OperatorRequest(Action.BEGIN), status(reason="/s: is empty"), [], True),
        (OperatorRequest(Action.BEGIN), status(), None, False),
        (OperatorRequest(Action.BEGIN), status(bad=(3,)), [2, 3], False),  # 2 may come to serve
        (OperatorRequest(Action.BEGIN), status(bad=(2, 3)), [2, 3], SyncError),
        (OperatorRequest(Action.BEGIN), status(reason="no memory"), [3], SyncError),
        (OperatorRequest(Action.BEGIN), status(reason="cannot be read", store_lost=True), None, SyncError),
        (OperatorRequest(Action.CHANGE, change=BRINGS), status(1, pinned=2), [1, 2], False),
        (OperatorRequest(Action.CHANGE, change=BRINGS), status(2, pinned=2), [1, 2], True),
        (OperatorRequest(Action.CHANGE, change=BRINGS), status(1, pinned=1), [1, 2], True),  # another pin came
    ],
)
def test_what_a_change_waits_for(
    request_: OperatorRequest, now: Status, published: list[int] | None, expected: bool | type[Exception]
) -> None:
    outcome = request_.outcome(now, published, whole=True)
    if isinstance(expected, bool):
        assert outcome is (now if expected else None)
    else:
        assert isinstance(outcome, expected)
