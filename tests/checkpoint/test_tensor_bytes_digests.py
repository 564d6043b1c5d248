"""Digests are those of the bytes, however these are read, and whoever wants the interpreter meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from xxhash import xxh3_128_digest

from paramsync.checkpoint.tensor_bytes import Digests
from paramsync.dtypes import Array
from tests.support.arrays import any_bits

_BIT = 1 << 18
_LARGE = (16 << 20) + 7


@pytest.fixture(scope="module")
def content() -> Array:
    return np.frombuffer(any_bits("uint8", (_LARGE,)).tobytes(), np.uint8)  # which may not be written to


@pytest.fixture
def contended() -> Iterator[None]:
    """A thread has the interpreter, and gives it up only when it must."""
    ended = threading.Event()

    def spin() -> None:
        while not ended.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("size", [0, 1, _BIT - 1, _BIT, _BIT + 1, 2 * _BIT, _LARGE])
def test_a_digest_is_that_of_the_bytes(content: Array, size: int) -> None:
    assert Digests().of(content[:size]) == xxh3_128_digest(content[:size].data)


def test_a_bit_that_is_another_makes_another_digest(content: Array) -> None:
    digests = Digests()
    changed = content.copy()
    for at in (0, _BIT - 1, _BIT, _LARGE - 1):
        changed[at] ^= 1
        assert digests.of(changed) != digests.of(content)
        changed[at] ^= 1
    assert digests.of(changed) == digests.of(content)


@pytest.mark.usefixtures("contended")
def test_who_is_kept_from_the_interpreter_asks_for_it_seldom(content: Array) -> None:
    digests = Digests()
    began = time.thread_time(), time.perf_counter()
    found = [digests.of(content[:size]) for size in (_LARGE, _LARGE - 1, _LARGE - 2)]
    assert found == [xxh3_128_digest(content[:size].data) for size in (_LARGE, _LARGE - 1, _LARGE - 2)]
    waited = time.perf_counter() - began[1] - (time.thread_time() - began[0])
    assert waited < _LARGE / _BIT * 0.005  # each time it may be kept for that long, which it would be at every bit


def test_threads_that_ask_at_once_get_what_is_theirs(content: Array) -> None:
    digests = Digests()
    parts = [content[at * _BIT : -at * _BIT or None] for at in range(8)]
    found: dict[int, bytes] = {}

    def ask(at: int) -> None:
        found[at] = digests.of(parts[at])

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(parts))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == {at: xxh3_128_digest(part.data) for at, part in enumerate(parts)}
