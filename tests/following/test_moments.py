"""Versions that are to serve at a moment: prepared beside the serving version, and swapped to at that moment."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from paramsync.errors import NotServingError, UnknownVersionError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.replica import Replica
from paramsync.moments import LATEST_MOMENT, Moments, Move, from_values, wrong_clock
from paramsync.remote.bucket_status import BucketStatus
from paramsync.remote.copy_note import CopyNote
from paramsync.status import EventKind, State, Status
from paramsync.version import Version
from tests.support.followers import LONG, SILENT, milestones, quarantined, serving
from tests.support.published import Publisher, ask, proven
from tests.support.written import version


class Clock:
    """The time of day, which stands still until a test sets it."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now

    def come(self, moment: Version | float, *, late: float = 0.0) -> None:
        serve_at = moment.serve_at if isinstance(moment, Version) else moment
        assert serve_at is not None
        self.now = serve_at + late


class Timed(Follower):
    """A follower with a clock of the test's, which has looked once."""

    def __init__(self, path: Path, clock: Clock | None = None, *, model: str = "m") -> None:
        self.time = clock or Clock()
        super().__init__(Replica(model, path), poll_seconds=60.0, clock=self.time)
        self.run_once()

    def come(self, moment: Version | float, *, late: float = 0.0) -> int | None:
        """Set the clock to a moment, or that of a version, and return which version serves then."""
        self.time.come(moment, late=late)
        self.run_once()
        return serving(self)

    def order(self, action: Action, number: int | None = None) -> tuple[Future[Status], float]:
        """Make a request for a moment in ten minutes, and look."""
        moment = self.time.now + 600
        future = self.ask(action, number, serve_at=moment)
        self.run_once()
        assert not future.done()
        return future, moment


@pytest.fixture
def timed(publisher: Publisher) -> Timed:
    """It serves version 1."""
    publisher.publish(1)
    return Timed(publisher.path)


def answer(follower: Follower, action: Action, number: int | None = None) -> int | None:
    """Make a request, and return which version serves then."""
    future = follower.ask(action, number)
    follower.run_once()
    future.result(0)
    return serving(follower)


def test_a_version_is_prepared_at_once_and_serves_at_its_moment(timed: Timed, publisher: Publisher) -> None:
    events = timed.subscribe(lambda: None)
    second = publisher.publish(2, serve_after=600)
    timed.run_once()
    status = timed.status()
    assert (serving(timed), status.resident, status.next, status.next_at) == (1, (1, 2), 2, second.serve_at)
    assert (status.state, status.reason) == (State.SERVING, "")
    assert [event.kind for event in milestones(events)] == [EventKind.FOUND, EventKind.RESTORING, EventKind.RESTORED]
    assert proven(*ask(timed, 2))  # a request may name it
    timed.come(second, late=0.25)
    status = timed.status()
    assert (serving(timed), status.next, status.next_at) == (2, None, None)
    assert status.swap_skew_seconds == pytest.approx(0.25)
    assert [event.kind for event in milestones(events)] == [EventKind.SWAPPED]
    assert proven(*ask(timed))


def test_a_version_comes_to_serve_without_a_look_at_its_store(timed: Timed, publisher: Publisher) -> None:
    second = publisher.publish(2, serve_after=600)
    timed.run_once()
    (publisher.path / "checkpoint").write_text("damaged")
    assert (timed.come(second), timed.status().reason) == (2, "")
    timed.run_once()
    assert (serving(timed), "checkpoint" in timed.status().reason) == (2, True)


def test_versions_serve_one_after_the_other_each_at_its_moment(timed: Timed, publisher: Publisher) -> None:
    versions = [publisher.publish(step, serve_after=100 * step) for step in (2, 3, 4)]
    timed.run_once()
    assert timed.status().resident == (1, 2, 3, 4)
    for waiting in versions:
        assert timed.status().next == waiting.number
        assert timed.come(waiting) == waiting.number
    assert timed.status().resident == (4, 3)


def test_few_versions_wait_in_memory_and_others_follow(timed: Timed, publisher: Publisher) -> None:
    versions = [publisher.publish(step, serve_after=100 * step) for step in range(2, 7)]
    timed.run_once()
    assert timed.status().resident == (1, 2, 3, 4, 5)
    timed.time.come(versions[0])
    for _ in range(2):
        timed.run_once()
    assert timed.status().resident == (2, 1, 3, 4, 5, 6)


@pytest.mark.parametrize("after", [0.0, -600.0])
def test_a_moment_that_is_over_is_not_waited_for(timed: Timed, publisher: Publisher, after: float) -> None:
    publisher.publish(2, serve_after=after)
    timed.time.now = time.time()
    timed.run_once()
    assert serving(timed) == 2


def test_a_moment_far_ahead_is_told_and_not_waited_for(timed: Timed, publisher: Publisher) -> None:
    publisher.publish(2, serve_after=LATEST_MOMENT + 600)
    timed.run_once()
    timed.run_once()
    assert serving(timed) == 2
    assert timed.status().reason == (
        "version 2 serves at once: its moment is more than an hour ahead, so the clock of this machine or of its"
        " publisher is wrong"
    )
    publisher.publish(3)
    timed.run_once()
    assert (serving(timed), timed.status().reason) == (3, "")


def test_a_newer_version_without_a_moment_serves_at_once_and_the_waiting_one_never(
    timed: Timed, publisher: Publisher
) -> None:
    second = publisher.publish(2, serve_after=600)
    timed.run_once()
    publisher.publish(3)
    timed.run_once()
    assert (serving(timed), timed.status().resident, timed.status().next) == (3, (3, 1), None)
    assert timed.come(second) == 3


def test_a_newer_version_with_an_earlier_moment_takes_the_place_of_the_waiting_one(
    timed: Timed, publisher: Publisher
) -> None:
    second, third = publisher.publish(2, serve_after=600), publisher.publish(3, serve_after=300)
    timed.run_once()
    assert (timed.status().resident, timed.status().next) == ((1, 3), 3)
    for moment in (third, second):
        assert timed.come(moment) == 3


def test_after_a_rollback_the_waiting_version_does_not_come_until_unpinned(timed: Timed, publisher: Publisher) -> None:
    publisher.publish(2)
    timed.run_once()
    third = publisher.publish(3, serve_after=600)
    timed.run_once()
    assert answer(timed, Action.ROLLBACK) == 1
    assert (timed.status().resident, timed.status().next) == ((1, 2), None)
    assert timed.come(third, late=5.0) == 1
    assert answer(timed, Action.UNPIN) == 3
    assert timed.status().swap_skew_seconds is None  # the pin kept it away, not this machine


def test_after_an_unpin_the_waiting_version_still_waits(timed: Timed, publisher: Publisher) -> None:
    answer(timed, Action.PIN, 1)
    second = publisher.publish(2, serve_after=600)
    assert answer(timed, Action.UNPIN) == 1
    assert timed.status().next == 2
    assert timed.come(second) == 2


def test_a_pin_does_not_wait_for_the_moment_of_its_version(timed: Timed, publisher: Publisher) -> None:
    publisher.publish(2, serve_after=600)
    timed.run_once()
    assert answer(timed, Action.PIN, 2) == 2


def test_a_new_server_that_waits_for_a_moment_names_a_host_with_a_wrong_clock(publisher: Publisher) -> None:
    publisher.publish(1, serve_after=600)
    clock = "the clock of the uploading host is 3590 s or more ahead of the bucket's: set it"
    CopyNote("s3://b/m", status=BucketStatus(address="s3://b/m", clock=clock)).write(publisher.path)
    assert Timed(publisher.path).status().reason.endswith(f" UTC; {clock}")


def test_a_sync_waits_for_the_moment_and_says_so(timed: Timed, publisher: Publisher) -> None:
    second = publisher.publish(2, serve_after=600)
    synced = timed.ask(Action.SYNC)
    timed.run_once()
    assert not synced.done()
    assert "version 2 waits for its moment, " in timed.late(None, 1.0)
    timed.come(second)
    assert synced.result(0).serving == second


def test_after_a_restart_the_older_version_serves_until_the_moment(timed: Timed, publisher: Publisher) -> None:
    second = publisher.publish(2, serve_after=600)
    timed.run_once()
    again = Timed(publisher.path, timed.time)
    assert (serving(again), again.status().next) == (1, 2)
    again.come(second)
    assert serving(again) == 2
    timed.time.come(second, late=30.0)
    late = Timed(publisher.path, timed.time)
    assert (serving(late), late.status().swap_skew_seconds) == (2, None)


def test_a_store_whose_only_version_waits_serves_nothing_and_says_why(publisher: Publisher) -> None:
    first = publisher.publish(1, serve_after=600)
    follower = Timed(publisher.path)
    assert (follower.status().state, follower.status().resident) == (State.WAITING, (1,))
    assert follower.status().reason.startswith("version 1 waits for its moment, ")
    with pytest.raises(NotServingError, match="version 1 waits for its moment"):
        ask(follower)
    assert (follower.come(first), follower.status().reason) == (1, "")


def test_a_waiting_version_that_its_store_dropped_serves_all_the_same(timed: Timed, publisher: Publisher) -> None:
    second = publisher.publish(2, serve_after=600)
    timed.run_once()
    for step in range(3, 8):
        publisher.publish(step, serve_after=600 + step)
    timed.run_once()
    assert 2 not in timed.status().in_store
    assert timed.come(second) == 2
    assert proven(*ask(timed))


def test_a_damaged_version_is_quarantined_before_its_moment(timed: Timed, publisher: Publisher) -> None:
    second = publisher.publish_corrupt(2, serve_after=600)
    timed.run_once()
    assert (quarantined(timed), timed.status().next, serving(timed)) == ([2], None, 1)
    assert timed.come(second) == 1


def test_a_version_that_is_damaged_while_it_waits_does_not_come_to_serve(timed: Timed, publisher: Publisher) -> None:
    second = publisher.publish(2, serve_after=600)
    timed.run_once()
    publisher.overwrite(2)
    timed.replica.suspects.update(timed.replica.residents)
    timed.come(second)
    assert (quarantined(timed), serving(timed)) == ([2], 1)


def test_a_waiting_version_does_not_stand_in_for_a_damaged_one_if_another_can(publisher: Publisher) -> None:
    publisher.publish(1)
    follower = Timed(publisher.path)
    publisher.publish(2)
    follower.run_once()
    publisher.publish(3, serve_after=600)
    follower.run_once()
    publisher.overwrite(2)
    follower.replica.suspects.update(follower.replica.residents)
    follower.run_once()
    assert (quarantined(follower), serving(follower), follower.status().next) == ([2], 1, 3)


def test_a_moment_ends_the_restore_of_a_later_version(timed: Timed, publisher: Publisher) -> None:
    second = publisher.publish(2, serve_after=600)
    timed.run_once()

    def hear() -> None:  # the moment of version 2 comes while version 3 is restored
        if any((event.kind, event.version.number) == (EventKind.RESTORING, 3) for event in events.take()):
            timed.time.come(second)

    events = timed.subscribe(hear)
    publisher.publish(3, serve_after=900)
    timed.run_once()
    assert (serving(timed), timed.status().resident) == (1, (1, 2))
    for _ in range(2):
        timed.run_once()
    assert (serving(timed), timed.status().resident) == (2, (2, 1, 3))


def test_models_with_the_same_moment_swap_at_the_same_tick_of_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    publishers = [Publisher(tmp_path / name) for name in ("a", "b")]
    for publisher in publishers:
        publisher.publish(1)
    followers = [Timed(publisher.path, clock, model=publisher.path.name) for publisher in publishers]
    waiting = [publisher.publish(2, serve_after=600) for publisher in publishers]
    for follower in followers:
        follower.run_once()
    assert [serving(follower) for follower in followers] == [1, 1]
    clock.come(waiting[-1])
    for follower in followers:
        follower.run_once()
    assert [serving(follower) for follower in followers] == [2, 2]
    for publisher in publishers:
        publisher.close()


def test_a_started_follower_swaps_by_its_own_timer(publisher: Publisher) -> None:
    publisher.publish(1)
    follower = Follower(Replica("m", publisher.path), poll_seconds=3600.0)
    follower.start(SILENT)
    follower.sync(timeout=LONG)
    second = publisher.publish(2, serve_after=0.3)
    assert second.serve_at is not None
    with follower:
        status = follower.sync(timeout=LONG)
        now = time.time()
    assert (status.serving, now >= second.serve_at) == (second, True)
    assert status.swap_skew_seconds is not None
    assert status.swap_skew_seconds >= 0.0


# Requests with a moment -----------------------------------------------------------------------------------------------


def test_a_pin_and_an_unpin_are_prepared_and_made_at_their_moments(timed: Timed, publisher: Publisher) -> None:
    for step in (2, 3, 4):
        publisher.publish(step)
    timed.run_once()
    pinned, moment = timed.order(Action.PIN, 2)
    status = timed.status()
    assert (serving(timed), status.pinned, status.next, status.next_at) == (4, None, 2, moment)
    assert timed.come(moment + 0.5) == 2
    assert pinned.result(0).pinned == 2
    assert pinned.result(0).swap_skew_seconds == pytest.approx(0.5)
    unpinned, moment = timed.order(Action.UNPIN)
    assert (serving(timed), timed.status().pinned, timed.status().next) == (2, 2, 4)
    assert timed.come(moment) == 4
    assert (unpinned.result(0).pinned, unpinned.result(0).swap_skew_seconds) == (None, 0.0)


@pytest.mark.parametrize("lost", [False, True])
def test_an_older_version_that_waits_for_its_pin_does_not_come_before_for_another_reason(
    timed: Timed, publisher: Publisher, lost: bool
) -> None:
    publisher.publish(2)
    timed.run_once()
    pinned, moment = timed.order(Action.PIN, 1)
    if lost:
        shutil.rmtree(publisher.path)
        timed.run_once()
    else:
        labelled = timed.ask(Action.LABEL, 2, "stable")  # needs no look at the store
        timed.run_once()
        labelled.result(0)
    assert (serving(timed), timed.status().swaps, pinned.done()) == (2, 2, False)
    assert timed.come(moment) == 1


def test_a_rollback_at_a_moment_goes_back_from_what_serves_then(timed: Timed, publisher: Publisher) -> None:
    publisher.publish(2)
    timed.run_once()
    back, moment = timed.order(Action.ROLLBACK, 1)
    publisher.publish(3)
    timed.run_once()
    assert serving(timed) == 2  # a version that was published after the order waits
    assert timed.come(moment) == 1
    assert back.result(0).before == ()


def test_a_sync_at_a_moment_comes_before_the_moment_of_its_version_and_no_later_one_jumps_the_queue(
    timed: Timed, publisher: Publisher
) -> None:
    publisher.publish(2, serve_after=1800)
    timed.run_once()
    synced, moment = timed.order(Action.SYNC)
    publisher.publish(3, serve_after=3000)
    timed.run_once()
    assert (serving(timed), timed.status().next, timed.status().next_at) == (1, 2, moment)
    assert timed.come(moment) == 2
    assert synced.result(0).next == 3


def test_a_request_whose_version_is_nowhere_fails_before_its_moment(timed: Timed) -> None:
    refused = timed.ask(Action.PIN, 7, serve_at=timed.time.now + 600)
    timed.run_once()
    with pytest.raises(UnknownVersionError, match="there are: 1"):
        refused.result(0)


def test_a_request_that_is_given_up_before_its_moment_changes_nothing(timed: Timed, publisher: Publisher) -> None:
    publisher.publish(2)
    timed.run_once()
    pinned, moment = timed.order(Action.PIN, 1)
    pinned.cancel()
    timed.run_once()
    assert timed.status().next is None
    assert timed.come(moment) == 2


# Moments, without a follower ------------------------------------------------------------------------------------------


def at(number: int, serve_at: float | None) -> Version:
    return replace(version(number), serve_at=serve_at)


def test_a_wait_never_grows_if_the_clock_is_set_back() -> None:
    moments = Moments()
    moments.update([at(1, 110.0)], 100.0, 5.0)
    assert moments.left(100.0, 5.0) == 10.0
    moments.update([at(1, 110.0)], 50.0, 6.0)
    assert moments.left(50.0, 6.0) == 9.0
    moments.update([at(1, 110.0)], 50.0, 15.0)
    assert (dict(moments.coming), moments.left(50.0, 15.0)) == ({}, None)


def test_a_wait_ends_if_the_clock_is_set_forward() -> None:
    moments = Moments()
    moments.update([at(1, 110.0)], 100.0, 5.0)
    assert moments.left(110.0, 5.5) == 0.0
    moments.update([at(1, 110.0)], 110.0, 5.5)
    assert dict(moments.coming) == {}


@pytest.mark.parametrize(
    ("number", "own", "sync", "expected"),
    [
        pytest.param(7, None, False, None, id="a version from before the order need not wait"),
        pytest.param(7, 50.0, False, 50.0, id="a version from before the order keeps its moment"),
        pytest.param(8, None, False, 100.0, id="a version from after the order does not jump the queue"),
        pytest.param(8, 50.0, False, 50.0, id="unless its own moment is earlier"),
        pytest.param(8, 150.0, False, 150.0, id="a later moment stays"),
        pytest.param(7, None, True, 100.0, id="a sync holds back the version that is not served yet"),
        pytest.param(7, 150.0, True, 100.0, id="a sync comes before the version's own moment"),
        pytest.param(7, 50.0, True, 50.0, id="a sync delays nothing"),
        pytest.param(6, None, True, None, id="a sync is about the newest version"),
        pytest.param(8, 150.0, True, 150.0, id="a sync is not about later versions"),
    ],
)
def test_the_moment_of_a_version_with_a_move(
    number: int, own: float | None, sync: bool, expected: float | None
) -> None:
    assert Move(at=100.0, newest=7, sync=sync).moment_of(at(number, own)) == expected


@pytest.mark.parametrize(
    ("after", "before", "expected"),
    [
        pytest.param(100.2, 100.4, "", id="the same"),
        pytest.param(103.0, 103.2, "", id="two seconds, and one that the server cuts off"),
        pytest.param(90.0, 110.0, "", id="whatever is possible between two looks"),
        pytest.param(105.0, 105.2, "4 s or more ahead of", id="ahead"),
        pytest.param(95.0, 95.4, "5 s or more behind", id="behind"),
    ],
)
def test_a_clock_that_differs_from_the_buckets_is_told(after: float, before: float, expected: str) -> None:
    told = wrong_clock((100.0, 101.0), (after, before))
    assert told == (f"the clock of this host is {expected} the bucket's: set it" if expected else "")


@pytest.mark.parametrize(
    "change",
    [{"at": "soon"}, {"at": -1}, {"at": float("inf")}, {"before": "1"}, {"before": -1}, {"newest": None}, {"sync": 1}],
)
def test_a_move_that_cannot_be_followed_is_refused(change: dict[str, object]) -> None:
    values: dict[str, object] = {"at": 100, "before": 3, "newest": 7, "sync": False}
    assert from_values(values | {"another": "of a newer release"}) == Move(at=100.0, before=3, newest=7)
    with pytest.raises(ValueError, match="move: expected at, before, newest and sync"):
        from_values(values | change)
