"""The end of a channel is noticed, whatever other threads ask; SharedWords of one process are read by another."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from inferencer.processes import shared_words
from inferencer.processes.channel import Channel, ClosedError, pair
from inferencer.processes.shared_words import SharedWords

_ROUNDS = 100
_WAITING = 50
_SECONDS = 30.0


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_the_end_is_told_while_others_ask(many_switches: None) -> None:
    for _ in range(_ROUNDS):
        ours, other_end = pair()
        ended = threading.Event()
        channel = Channel(ours, {}, name="test")
        channel.ended = ended.set
        answers: list[Future[Any]] = [channel.ask("anything") for _ in range(_WAITING)]

        def ask(channel: Channel = channel, ended: threading.Event = ended, answers: Any = answers) -> None:
            while not ended.is_set() and len(answers) < 100 * _WAITING:
                answers.append(channel.ask("anything"))

        other_end.close()
        asking = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
        for thread in asking:
            thread.start()
        channel.start()
        assert ended.wait(_SECONDS)
        for thread in asking:
            thread.join(_SECONDS)
        assert {type(answer.exception(_SECONDS)) for answer in answers} == {ClosedError}


def test_a_process_that_takes_nothing_is_given_up() -> None:
    ours, other_end = pair(send_seconds=0.2)
    channel = Channel(ours, {}, name="test")
    channel.start()
    answer = channel.ask("anything", bytes(10_000_000))
    assert type(answer.exception(_SECONDS)) is ClosedError
    assert type(channel.ask("anything").exception(_SECONDS)) is ClosedError
    other_end.close()


def test_a_question_that_is_given_up_where_it_was_to_be_answered_is_an_error() -> None:
    ours, other_end = pair()
    late: Future[Any] = Future()
    asking, answering = Channel(ours, {}, name="asking"), Channel(other_end, {"late": lambda: late}, name="answering")
    asking.start()
    answering.start()
    answer = asking.ask("late")
    assert late.cancel()
    assert type(answer.exception(_SECONDS)) is ClosedError
    asking.close()


@pytest.fixture
def words() -> tuple[SharedWords, SharedWords]:
    """The same memory, mapped twice."""
    descriptor = shared_words.create()
    found = SharedWords(descriptor), SharedWords(descriptor)
    os.close(descriptor)
    return found


def test_versions_that_were_computed_are_seen_once(words: tuple[SharedWords, SharedWords]) -> None:
    supervisor, worker = words
    calls = worker.calls(63)
    with calls.call(7), calls.call(9):
        with calls.call(8):
            pass
        assert supervisor.calls(62).take() == frozenset()
        assert supervisor.calls(63).take() == {7, 9}
    assert supervisor.calls(63).take() == frozenset()


def test_calls_beyond_those_that_there_is_room_for_are_made_all_the_same(
    words: tuple[SharedWords, SharedWords],
) -> None:
    supervisor, worker = words
    calls = worker.calls(0)
    entered = [calls.call(number) for number in range(1, 41)]
    for call in entered:
        call.__enter__()
    assert supervisor.calls(0).take() < set(range(1, 41))
    for call in entered:
        call.__exit__(None, None, None)
    with calls.call(5):
        assert supervisor.calls(0).take() == {5}


def test_epoch_taken_bytes_and_calls_do_not_overlap(words: tuple[SharedWords, SharedWords]) -> None:
    supervisor, worker = words
    worker.epoch[0] = 3
    worker.taken[0] = worker.taken[63] = 5
    with worker.calls(0).call(1):
        assert (supervisor.epoch[0], sum(supervisor.taken)) == (3, 10)
        assert supervisor.calls(0).take() == {1}
