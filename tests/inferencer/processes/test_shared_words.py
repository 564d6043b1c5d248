"""SharedWords: what one process writes another one reads, also when the first has crashed."""

from __future__ import annotations

import os

import pytest

from inferencer.processes import shared_words
from inferencer.processes.shared_words import SharedWords


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
