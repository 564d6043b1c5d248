"""A label names its version until an operator moves it; `latest` keeps the N newest versions in memory."""

from __future__ import annotations

import pytest

from paramsync.errors import UnknownLabelError, UnknownVersionError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.pins_file import Change
from paramsync.following.replica import Replica
from paramsync.status import EventKind, Status
from tests.support.followers import milestones, quarantined, serving
from tests.support.published import PARAMETERS, Publisher, ask, captured, proven, values


def labelled(follower: Follower, label: str, number: int) -> Status:
    answer = follower.ask(Action.LABEL, number, label)
    follower.run_once()
    return answer.result(0)


def unlabelled(follower: Follower, label: str) -> Status:
    answer = follower.ask(Action.UNLABEL, label=label)
    follower.run_once()
    return answer.result(0)


def seen(follower: Follower, label: str) -> tuple[int, list[float]]:
    one = follower.replica.take(label=label)
    return one.version.number, [float(part[0, 0]) for part in one.parameters]


def test_a_version_that_is_not_in_memory_is_restored_beside_what_serves(
    follower: Follower, publisher: Publisher
) -> None:
    for step in (1, 2, 3):
        publisher.publish(step)
    follower.run_once()
    events = follower.subscribe(lambda: None)
    status = labelled(follower, "canary", 1)
    assert (status.labels, status.resident, serving(follower)) == ({"canary": 1}, (3, 1), 3)
    assert seen(follower, "canary") == (1, [1.0] * PARAMETERS)
    assert [event.kind for event in milestones(events)] == [EventKind.RESTORING, EventKind.RESTORED]
    assert (status.swaps, status.restores) == (1, 2)


def test_a_label_moves_and_what_it_left_goes(follower: Follower, publisher: Publisher) -> None:
    for step in (1, 2, 3):
        publisher.publish(step)
    follower.run_once()
    labelled(follower, "stable", 1)
    assert labelled(follower, "stable", 2).labels == {"stable": 2}
    assert follower.status().resident == (3, 2)
    labelled(follower, "canary", 2)
    assert unlabelled(follower, "stable").labels == {"canary": 2}
    assert follower.status().resident == (3, 2)
    unlabelled(follower, "canary")
    assert follower.status().resident == (3,)


def test_a_label_keeps_the_version_it_has_when_that_is_rewritten(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(5, tensors=values(1.0, captured()))
    follower.run_once()
    labelled(follower, "stable", 5)
    publisher.close()
    for one in publisher.path.iterdir():
        one.unlink()
    again = Publisher(publisher.path)
    again.publish(5, tensors=values(2.0, captured()))
    follower.run_once()
    assert float(follower.replica.take(5).parameters[0][0, 0]) == 2.0
    assert seen(follower, "stable") == (5, [1.0] * PARAMETERS)
    assert follower.status().resident == (5,)
    labelled(follower, "stable", 5)  # asked for once more, it is the one that serves
    assert seen(follower, "stable") == (5, [2.0] * PARAMETERS)
    again.close()


def test_a_version_that_is_nowhere_cannot_be_labelled(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    follower.run_once()
    with pytest.raises(UnknownVersionError, match="there are: 1"):
        labelled(follower, "canary", 7)
    with pytest.raises(UnknownLabelError, match="label 'canary' of model 'm' is not there; there are: none"):
        unlabelled(follower, "canary")


# Races ----------------------------------------------------------------------------------------------------------------


def pruned_when_it_is_restored(follower: Follower, publisher: Publisher, number: int) -> None:
    """Have the publisher prune that version as soon as its restore has begun."""

    def prune() -> None:
        if follower.status().restoring == number and (publisher.path / f"ckpt-{number}.index").exists():
            for step in range(10, 16):
                publisher.publish(step)

    follower.subscribe(prune)


def test_a_version_pruned_while_it_is_restored_for_a_label_is_said_to_be_gone(
    follower: Follower, publisher: Publisher
) -> None:
    for step in (1, 2):
        publisher.publish(step)
    follower.run_once()
    pruned_when_it_is_restored(follower, publisher, 1)
    answer = follower.ask(Action.LABEL, 1, "stable")
    follower.run_once()
    follower.run_once()
    with pytest.raises(UnknownVersionError, match="there are: 11, 12, 13, 14, 15"):
        answer.result(0)
    assert (follower.status().labels, follower.status().quarantined, serving(follower)) == ({}, (), 15)


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
