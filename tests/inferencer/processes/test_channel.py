"""The end of a channel is noticed, whatever other threads ask at that moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from inferencer.processes.channel import Channel, ClosedError, pair

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
