"""The protocol: decided cases, and schedules that are simulated. `make campaign` runs many more of them."""

from __future__ import annotations

from collections import Counter

import pytest

from paramsync.errors import EmptiedError, FencedError
from paramsync.remote import fleet, protocol, state
from paramsync.remote.protocol import Answer, Found, Held, Read, Replace
from paramsync.remote.state import Listed, State
from tests.hostile.campaigns import schedules
from tests.hostile.campaigns.schedules import RUN

MANY = 400


@pytest.mark.parametrize("restored", [False, True], ids=["", "restored"])
def test_no_schedule_loses_a_version_or_an_object_or_goes_back(restored: bool) -> None:
    total: Counter[str] = Counter()
    with schedules.by_reference():
        for seed in range(MANY):
            try:
                total.update(schedules.run(schedules.schedule_of(seed), restored=restored))
            except AssertionError:
                pytest.fail("\n".join(schedules.history_of(schedules.schedule_of(seed), restored=restored)))
    assert total["versions"] > 7 * MANY
    assert total["fenced"] > 4 * MANY
    for fault in ("requests lost", "requests late", "answers lost", "answers wrong", "deletions", "choices"):
        assert total[fault] > MANY, fault


def test_a_schedule_is_the_same_with_states_as_json() -> None:
    for seed in range(10):
        with schedules.by_reference():
            by_reference = schedules.run(schedules.schedule_of(seed))
        assert schedules.run(schedules.schedule_of(seed)) == by_reference


def test_a_schedule_that_breaks_a_promise_is_shortened_to_the_few_steps_that_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "check_fence", lambda mine, current: None)
    faulty = next(seed for seed in range(1000) if schedules.fault_of(schedules.schedule_of(seed)))
    history = schedules.history_of(schedules.schedule_of(faulty))
    length, *_ = history[0].split()
    assert int(length) < 20
    assert history[-1] == "a state is no later than the last"  # for the epoch of a predecessor comes back


def test_a_lost_answer_of_a_commit_is_recognised_by_its_nonce() -> None:
    held = Held(State(RUN, 1, 1, "b" * 32, "b" * 32), "1")
    steps = protocol.commit(held, lambda state: state, "c" * 32)
    wrote = next(steps)
    assert isinstance(wrote, Replace)
    assert steps.send(Answer.UNKNOWN) == Read()
    with pytest.raises(StopIteration) as ended:
        steps.send(Found(wrote.content, "2"))
    assert ended.value.value == Held(state.from_json(wrote.content), "2")


def test_a_commit_keeps_what_an_operator_chose_meanwhile() -> None:
    mine = State(RUN, 1, 1, "b" * 32, "b" * 32)
    steps = protocol.commit(Held(mine, "1"), lambda state: state, "b" * 31 + "c")
    next(steps)
    steps.send(Answer.REFUSED)
    again = steps.send(Found(mine.choose("d" * 32, {"pin": 7}).to_json(), "2"))
    assert isinstance(again, Replace)
    assert again.tag == "2"
    assert state.from_json(again.content).choices == {"pin": 7}


def test_a_missing_state_is_never_a_fresh_start_for_somebody_who_has_seen_one() -> None:
    steps = protocol.take_over(RUN, "b" * 32, seen=(RUN, 1))
    next(steps)
    with pytest.raises(EmptiedError):
        steps.send(Answer.MISSING)


def test_a_publisher_that_was_stopped_while_it_began_does_not_fence_its_successor() -> None:
    before = State(run=RUN, epoch=1, sequence=1, nonce="c" * 32, committed="c" * 32)
    steps = protocol.take_over(RUN, "b" * 32)
    next(steps)
    wrote = steps.send(Found(before.to_json(), "1"))
    assert isinstance(wrote, Replace)
    successor = before.commit("d" * 32, epoch=3)
    assert steps.send(Answer.UNKNOWN) == Read()
    with pytest.raises(FencedError):
        steps.send(Found(successor.to_json(), "3"))


def test_of_two_publishers_that_begin_in_an_empty_bucket_the_later_stops() -> None:
    steps = protocol.take_over(RUN, "b" * 32)
    next(steps)
    steps.send(Answer.MISSING)
    steps.send(Answer.REFUSED)
    with pytest.raises(FencedError):
        steps.send(Found(State("e" * 32, 1, 1, "c" * 32, "c" * 32).to_json(), "1"))


def test_a_state_that_somebody_brought_back_is_mended_with_the_choices_that_it_has() -> None:
    first = Listed(1, "versions/1/1", "0" * 64)
    old = State(RUN, 1, 2, "b" * 32, "b" * 32, versions=(first,))
    mine = old.commit("b" * 31 + "c", versions=(first, Listed(2, "versions/1/2", "0" * 64)))
    steps = protocol.commit(Held(mine, "3"), lambda state: state, "b" * 31 + "d")
    next(steps)
    steps.send(Answer.REFUSED)
    wrote = steps.send(Found(old.choose("e" * 32, {"pinned": 1}).to_json(), "4"))
    assert isinstance(wrote, Replace)
    mended = state.from_json(wrote.content)
    assert [version.number for version in mended.versions] == [1, 2]
    assert mended.sequence > mine.sequence
    assert mended.pinned == 1


@pytest.mark.parametrize("restored", [1, 2], ids=["of an earlier publisher", "of another one with this epoch"])
def test_a_state_of_an_earlier_publisher_is_mended_and_that_of_another_fences(restored: int) -> None:
    mine = State(RUN, 2, 5, "b" * 32, "b" * 32)
    steps = protocol.commit(Held(mine, "3"), lambda state: state, "b" * 31 + "d")
    next(steps)
    steps.send(Answer.REFUSED)
    found = Found(State(RUN, restored, 9, "e" * 32, "e" * 32).to_json(), "4")
    if restored == 2:
        with pytest.raises(FencedError):
            steps.send(found)
    else:
        wrote = steps.send(found)
        assert isinstance(wrote, Replace)
        assert state.from_json(wrote.content).epoch == 2


def test_an_operator_whose_answer_was_lost_does_not_roll_back_twice() -> None:
    versions = tuple(Listed(number, f"versions/1/{number}", "0" * 64) for number in (1, 2, 3))
    before = State(RUN, 1, 4, "b" * 32, "b" * 32, versions=versions)
    steps = protocol.choose(fleet.roll_back("s3://bucket/m"), "c" * 32)
    next(steps)
    wrote = steps.send(Found(before.to_json(), "4"))
    assert isinstance(wrote, Replace)
    assert steps.send(Answer.UNKNOWN) == Read()
    with pytest.raises(StopIteration) as ended:
        steps.send(Found(wrote.content, "5"))
    assert ended.value.value.pinned == 2


@pytest.mark.parametrize(("run", "epoch"), [(RUN, 3), ("e" * 32, 2)])
def test_a_publisher_whose_process_died_does_not_take_the_bucket_back_from_its_successor(run: str, epoch: int) -> None:
    current = State(run=run, epoch=epoch, sequence=9, nonce="c" * 32, committed="c" * 32)
    steps = protocol.take_over(RUN, "b" * 32, seen=(RUN, 2))
    next(steps)
    with pytest.raises(FencedError):
        steps.send(Found(current.to_json(), "1"))


def test_a_publisher_whose_process_died_before_it_reported_its_epoch_goes_on_with_it() -> None:
    current = State(run=RUN, epoch=3, sequence=9, nonce="b" * 32, committed="b" * 32)
    steps = protocol.take_over(RUN, "b" * 32, seen=(RUN, 2))
    next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.send(Found(current.to_json(), "1"))
    assert ended.value.value.state == current
