"""Short calls run on the event loop, with the neighbours that came in the same turn of it."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
import tensorflow as tf

from inferencer.batching.batcher import SHORT_SECONDS, BatchedSignature
from paramsync.inference.resident import Resident
from tests.support.questions import Setting, lookup, on_a_loop, question, resident, totals, turns, until

FAST, BRISK, SLOW = SHORT_SECONDS / 10, SHORT_SECONDS * 0.9, SHORT_SECONDS * 2


@pytest.mark.parametrize(
    ("calls", "short_bytes"),
    [
        ([], 0),
        ([(100, SLOW)], 0),
        ([(100, FAST)], 200),  # a fast call: twice as many bytes are expected to be short
        ([(100, BRISK)], 100),  # a call that was just short: as many
        ([(100, FAST), (200, BRISK)], 200),
        ([(100, FAST), (200, SLOW)], 100),  # a slow call: half as many
        ([(100, FAST), (60, SLOW)], 30),
        ([(100, FAST), (60, SLOW), (60, FAST)], 120),
    ],
)
def test_the_bytes_of_a_short_call_are_learned_from_earlier_calls(
    calls: list[tuple[int, float]], short_bytes: int
) -> None:
    signature, unbounded = (BatchedSignature(batched=True, bounded=bounded) for bounded in (True, False))
    for size, seconds in calls:
        signature.took(size, seconds)
        unbounded.took(size, seconds)
    assert signature.short_bytes == short_bytes
    assert not unbounded.is_short(0)


async def short(setting: Setting, number: int = 2) -> Resident:
    """A version whose calls are short by now, and nothing is counted yet."""
    of = resident(number)
    await setting.warm(of)
    await turns()
    setting.metrics.told.clear()
    return of


@on_a_loop
async def test_neighbours_of_one_turn_share_a_call_and_those_of_the_next_do_not() -> None:
    setting = Setting()
    of = await short(setting)
    first = setting.ask(question(of, 1.0), question(of, 2.0))
    await turns(2)
    second = setting.ask(question(of, 3.0))
    await setting.answered(*first, *second)
    assert [totals(one) for one in (*first, *second)] == [[2.0], [4.0], [6.0]]
    assert await setting.over() == [("2", 2, 2), ("2", 1, 1)]


@on_a_loop
async def test_a_short_request_whose_caller_left_does_not_run() -> None:
    setting = Setting()
    of = await short(setting)
    asked = setting.ask(question(of, 1.0), question(of, 2.0))
    await asyncio.sleep(0)
    for one in asked:
        one.cancel()
    await turns()
    assert (setting.batcher.held, await setting.over()) == (0, [])


@on_a_loop
async def test_a_lone_short_request_is_answered_at_once_and_counted() -> None:
    setting = Setting()
    of = await short(setting)
    answer = setting.batcher.at_once(question(of, 3.0))
    assert answer is not None
    assert (answer["total"].tolist(), setting.metrics.told) == ([6.0], [("2", 1, 1)])
    assert await setting.over() == [("2", 1, 1)]


@on_a_loop
async def test_a_request_is_not_answered_at_once_where_another_waits_or_its_call_is_long() -> None:
    setting = Setting()
    of = await short(setting)
    assert setting.batcher.at_once(question(of, *[1.0] * 300)) is None
    [waiting] = setting.ask(question(of, 1.0))
    await asyncio.sleep(0)
    assert setting.batcher.at_once(question(of, 2.0)) is None
    await setting.answered(waiting)
    assert await setting.over() == [("2", 1, 1)]


@on_a_loop
async def test_what_fails_at_once_keeps_no_version_alive() -> None:
    setting, of = Setting(), resident(1)
    while setting.batcher.at_once(lookup(of, 1)) is None:
        [asked] = setting.ask(lookup(of, 1))
        await until(asked.done, setting.threads)
        del asked
    alive = weakref.ref(of)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(tf.errors.InvalidArgumentError):
            setting.batcher.at_once(lookup(of, 99))
        setting.threads.gates.clear()
        del of
        await until(lambda: alive() is None, setting.threads)
    finally:
        gc.enable()
