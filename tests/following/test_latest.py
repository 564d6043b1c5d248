"""`latest`: the N newest versions are in memory, as for a canary; older ones never delay the newest."""

from __future__ import annotations

from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.pins_file import Change
from paramsync.following.replica import Replica
from paramsync.status import EventKind
from tests.support.followers import quarantined, serving
from tests.support.published import Publisher, ask, proven


def of(publisher: Publisher, latest: int | None = 2) -> Follower:
    return Follower(Replica("m", publisher.path), poll_seconds=60.0, latest=latest)


def publish(publisher: Publisher, *steps: int) -> None:
    for step in steps:
        publisher.publish(step)


def resident(follower: Follower) -> tuple[int, ...]:
    """The versions in memory; the answer of each proves its version."""
    found = follower.status().resident
    assert all(proven(*ask(follower, number)) for number in found)
    return found


def test_new_ones_take_the_place_of_the_oldest_and_skipped_ones_are_brought_in(publisher: Publisher) -> None:
    publish(publisher, 1, 2)
    follower = of(publisher)
    follower.run_once()
    assert resident(follower) == (2, 1)
    publish(publisher, 3)
    follower.run_once()
    assert (resident(follower), follower.status().restores) == ((3, 2), 3)
    publish(publisher, 4, 5)
    follower.run_once()
    assert (resident(follower), serving(follower)) == ((5, 4), 5)
    follower.run_once()
    assert (resident(follower), follower.status().restores) == ((5, 4), 5)


def test_bad_ones_are_passed_over(publisher: Publisher) -> None:
    publish(publisher, 1, 2)
    publisher.publish_corrupt(3)
    publish(publisher, 4)
    follower = of(publisher)
    follower.run_once()
    assert (resident(follower), quarantined(follower)) == ((4, 2), [3])
    publisher.publish_bad(5)
    follower.run_once()
    assert (resident(follower), quarantined(follower)) == ((4, 2), [3, 5])


def test_a_newer_one_is_not_kept_waiting_by_an_older_one(publisher: Publisher) -> None:
    publish(publisher, 1, 2)
    follower = of(publisher)
    events = follower.subscribe(lambda: None)
    published: list[int] = []

    def publish_another() -> None:
        if follower.status().restoring == 1 and not published:
            published.append(publisher.publish(3).number)
            follower.notify()  # as the watch does

    follower.subscribe(publish_another)
    follower.run_once()
    follower.run_once()
    assert resident(follower) == (3, 2)
    begins = (EventKind.FOUND, EventKind.RESTORING, EventKind.SWAPPED)
    told = [(one.kind, one.version.number) for one in events.take() if one.kind in begins and one.progress is None]
    found, restoring, swapped = begins
    assert told == [
        *((found, 2), (restoring, 2), (swapped, 2), (restoring, 1)),  # which was given up
        *((found, 3), (restoring, 3), (swapped, 3)),
    ]
    assert quarantined(follower) == []


def test_what_a_change_holds_stays_in_memory_until_it_is_chosen(publisher: Publisher) -> None:
    publish(publisher, 1, 2, 3)
    follower = of(publisher, None)
    follower.run_once()
    change = Change(pinned=1)
    follower.hold(change)
    prepared = follower.ask(Action.PREPARE, change=change)
    follower.run_once()
    assert (prepared.result(0).pinned, serving(follower)) == (None, 3)
    publish(publisher, 4, 5, 6, 7, 8, 9)  # version 1 is in the store no more
    follower.run_once()
    assert resident(follower) == (9, 3, 1)
    done = follower.ask(Action.CHANGE, change=change)
    follower.run_once()
    assert (done.result(0).pinned, serving(follower)) == (1, 1)
    follower.hold(None)
    follower.run_once()
    assert resident(follower) == (1, 9)
