"""Versions stay in memory as long as they may be asked for, and are let go of by the follower alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import groupby

import numpy as np
import pytest

from paramsync.errors import NotServingError, UnknownLabelError, UnknownVersionError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.replica import Replica
from paramsync.inference.resident import Resident
from paramsync.status import Stage
from tests.support.followers import freed_by
from tests.support.published import PARAMETERS, Publisher

X = {"x": np.ones([1, 2], np.float32)}


def followed(publisher: Publisher, *, resident: int, steps: int) -> Follower:
    follower = Follower(Replica("m", publisher.path, resident=resident))
    for step in range(1, steps + 1):
        publisher.publish(step)
        follower.run_once()
    return follower


@pytest.mark.parametrize(("resident", "expected"), [(1, (5,)), (4, (5, 4, 3, 2)), (9, (5, 4, 3, 2, 1))])
def test_as_many_versions_stay_as_may_those_that_served_last(
    publisher: Publisher, resident: int, expected: tuple[int, ...]
) -> None:
    follower = followed(publisher, resident=resident, steps=5)
    assert follower.status().resident == expected
    for number in expected:
        assert follower.replica.predict(X, version=number)[0]["seen"].numpy().tolist() == [float(number)] * PARAMETERS
    with pytest.raises(UnknownVersionError, match=f"there are: {', '.join(map(str, sorted(expected)))}$"):
        follower.replica.take(9)


def test_a_version_that_serves_again_is_the_last_one_to_go(publisher: Publisher) -> None:
    follower = followed(publisher, resident=3, steps=3)
    follower.replica.swap(follower.replica.take(1))
    assert [one.version.number for one in follower.replica.residents] == [1, 3, 2]
    publisher.publish(4)
    follower.run_once()
    assert follower.status().resident == (4, 1, 3)


def test_a_labelled_version_does_not_take_the_place_of_another(publisher: Publisher) -> None:
    follower = followed(publisher, resident=2, steps=2)
    replica = follower.replica
    follower.ask(Action.LABEL, 2, "old")
    publisher.publish(3)
    follower.run_once()
    assert [one.version.number for one in replica.residents] == [3, 2]
    assert (replica.take(label="old").version.number, replica.labels) == (2, {"old": 2})
    with pytest.raises(UnknownLabelError, match="label 'new' of model 'm' is not there; there are: 'old'"):
        replica.take(label="new")


def test_what_is_labelled_and_then_is_not_is_freed_by_the_follower(publisher: Publisher) -> None:
    follower = followed(publisher, resident=1, steps=1)
    replica = follower.replica
    request = [replica.take()]
    follower.ask(Action.LABEL, 1, "old")
    follower.run_once()
    threads = freed_by(request[0])
    publisher.publish(2)
    follower.run_once()
    assert [one.version.number for one in replica.residents] == [2, 1]
    follower.ask(Action.UNLABEL, label="old")
    follower.run_once()
    assert [one.version.number for one in replica.residents] == [2]
    ends = threading.Thread(target=request.clear, name="request")
    ends.start()
    ends.join()
    assert (threads, replica.leaving) == ([], (1,))
    follower.run_once()
    assert (threads, replica.leaving) == ([threading.current_thread().name], ())


def test_a_model_that_is_released_serves_nothing_and_frees_what_no_request_holds(publisher: Publisher) -> None:
    follower = followed(publisher, resident=2, steps=2)
    request = follower.replica.take()
    follower.replica.release()
    with pytest.raises(NotServingError, match="no version from store"):
        follower.replica.take()
    follower.replica.tend()
    assert follower.replica.leaving == (2,)
    assert request.predict(X)["seen"].numpy().tolist() == [2.0] * PARAMETERS


def test_what_a_version_is_part_of_is_made_before_the_swap_and_shown_after_it(publisher: Publisher) -> None:
    follower = followed(publisher, resident=2, steps=1)
    seen: list[tuple[str, int, int]] = []

    def prepare(resident: Resident) -> Callable[[], None]:
        number = resident.version.number
        seen.append(("prepare", number, follower.replica.take().version.number))
        return lambda: seen.append(("serve", number, follower.replica.take().version.number))

    follower.replica.on_swap(prepare)
    publisher.publish(2)
    follower.run_once()
    assert seen == [("prepare", 2, 1), ("serve", 2, 2)]


def test_what_others_make_of_a_version_does_not_keep_it_from_serving(
    publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    follower = followed(publisher, resident=2, steps=1)

    def prepare(resident: Resident) -> Callable[[], None]:
        raise RuntimeError("these do not fit together")

    follower.replica.on_swap(prepare)
    publisher.publish(2)
    assert follower.run_once() is not None
    assert "these do not fit together" in caplog.text


# The course of versions -----------------------------------------------------------------------------------------------


def courses(follower: Follower) -> dict[int, tuple[Stage, str]]:
    return {one.number: (one.stage, one.reason) for one in follower.status().courses()}


def test_the_course_of_each_version_can_be_seen_from_its_beginning_to_its_end(publisher: Publisher) -> None:
    follower = Follower(Replica("m", publisher.path, resident=2))
    stages: list[Stage] = []
    follower.subscribe(lambda: stages.append(courses(follower)[1][0]))
    publisher.publish(1)
    follower.run_once()
    told = [stage for stage, _ in groupby(stages)]  # a restore that takes long tells its progress, too
    assert told == [Stage.FOUND, Stage.RESTORING, Stage.FOUND, Stage.RESIDENT]  # restored, but not swapped to yet
    request = [follower.replica.take()]
    for step in (2, 3):
        publisher.publish(step)
        follower.run_once()
    publisher.publish_bad(4)
    follower.run_once()
    found = courses(follower)
    assert list(found) == [4, 3, 2, 1]
    assert [stage for stage, _ in found.values()] == [Stage.ENDED, Stage.RESIDENT, Stage.RESIDENT, Stage.LEAVING]
    assert "finite values" in found[4][1]
    request.clear()
    follower.run_once()
    assert courses(follower)[1] == (Stage.ENDED, "")
    follower.drain()
    assert courses(follower)[3][0] is Stage.LEAVING
