"""Questions that fail, are late, given up or refused: nobody else pays for one, and nothing is kept of it."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
import tensorflow as tf

from paramsync.errors import BusyError
from paramsync.inference import batchable
from tests.support.batching import Setting, on_a_loop, totals
from tests.support.questions import TABLE, lookup, question, resident, turns, until


@on_a_loop
async def test_the_fault_of_one_is_nobody_elses() -> None:
    setting, of = Setting(), resident(1)
    assert batchable.of(of.graph, TABLE).together
    asked = setting.ask(lookup(of, 0), lookup(of, 1), lookup(of, 99), lookup(of, 2, 3))
    told = await setting.over(*asked)
    assert told == [("1", 1, 1), ("1", 3, 4)]
    assert [one.result()["found"].shape for one in (asked[1], asked[3])] == [(1, 2), (2, 2)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"99 is not in \[0, 4\)"):
        asked[2].result()


@on_a_loop
async def test_who_was_told_an_error_keeps_no_version_alive() -> None:
    setting, of = Setting(), resident(1)
    alive = weakref.ref(of)
    gc.collect()
    gc.disable()  # which frees them in the end, and may take its time
    try:
        asked = setting.ask(lookup(of, 0), lookup(of, 1), lookup(of, 99), lookup(of, 98))
        assert len(await setting.over(*asked)) == 2
        assert [type(one.exception()) for one in asked[2:]] == [tf.errors.InvalidArgumentError] * 2
        setting.threads.gates.clear()
        del asked, of
        await until(lambda: alive() is None)  # once the thread has let go of it too
    finally:
        gc.enable()


@on_a_loop
async def test_what_its_caller_gave_up_is_not_computed_and_makes_room_at_once() -> None:
    setting, of = Setting(most=3), resident(1)
    first, second, third = setting.ask(*(question(of, float(at)) for at in range(3)))
    await turns()
    assert setting.batcher.held == 3
    second.cancel()
    await turns()
    assert setting.batcher.held == 2
    first.cancel()  # it is computed already: its request is in memory until then
    await turns()
    assert setting.batcher.held == 2
    assert await setting.over(third) == [("1", 1, 1), ("1", 1, 1)]
    assert totals(third) == [2.0]
    assert (first.cancelled(), second.cancelled()) == (True, True)


@on_a_loop
async def test_what_waited_beyond_its_deadline_is_told_so_and_not_computed() -> None:
    setting, of = Setting(), resident(1)
    now = asyncio.get_running_loop().time()
    [first] = setting.ask(question(of, 1.0))
    await turns()
    late = setting.ask(question(of, 2.0), question(of, 3.0), deadline=now + 0.05)
    [past] = setting.ask(question(of, 4.0), deadline=now)
    for one in (*late, past):
        with pytest.raises(TimeoutError, match="the deadline passed"):
            await one
    assert setting.batcher.held == 1
    assert await setting.over(first) == [("1", 1, 1)]


@on_a_loop
async def test_beyond_the_bound_a_question_is_refused_at_once() -> None:
    setting, of = Setting(most=2), resident(1)
    asked = setting.ask(question(of, 1.0), question(of, 2.0))
    await turns()
    with pytest.raises(BusyError, match="2 requests are waiting or being answered already"):
        await setting.batcher.answer(question(of, 3.0))
    assert setting.metrics.waiting() == 1
    await setting.over(*asked)
    assert setting.metrics.waiting() == setting.batcher.held == 0


@on_a_loop
async def test_where_no_thread_can_be_started_all_are_told_so_and_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    setting, of = Setting(), resident(1)
    with monkeypatch.context() as without_threads:
        without_threads.setattr(setting.threads, "submit", no_thread)
        asked = setting.ask(lookup(of, 0), lookup(of, 1))
        await asyncio.wait(asked)
        for task in asked:
            with pytest.raises(BusyError, match="can't start new thread; try again in a moment"):
                task.result()
    assert setting.batcher.held == 0
    assert await setting.over(*setting.ask(lookup(of, 2)))
