"""What waits together goes as one call, which never changes an answer; short calls run on the event loop."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
import tensorflow as tf

from inferencer.batching.batcher import SHORT_SECONDS, BatchedSignature
from paramsync.errors import BusyError, NotServingError
from paramsync.inference import batchable
from paramsync.inference.questions import Question
from paramsync.inference.resident import Resident
from tests.support.questions import TABLE, Setting, lookup, on_a_loop, question, resident, totals, turns, until


@on_a_loop
async def test_what_waits_goes_as_one_call_and_each_gets_its_own_rows() -> None:
    setting, of = Setting(), resident(3)
    asked = setting.ask(question(of, 1.0), question(of, 2.0, 3.0), question(of, 4.0), question(of, 5.0, 6.0, 7.0))
    assert await setting.over(*asked) == [("3", 1, 1), ("3", 3, 6)]
    assert [totals(one) for one in asked] == [[3.0], [6.0, 9.0], [12.0], [15.0, 18.0, 21.0]]


@on_a_loop
async def test_versions_never_share_a_call() -> None:
    setting, versions = Setting(1), [resident(number) for number in (2, 3, 5)]
    asked = setting.ask(*(question(versions[at % 3], float(at)) for at in range(30)))
    told = await setting.over(*asked)
    assert sorted(told) == [("2", 1, 1), ("2", 9, 9), ("3", 10, 10), ("5", 10, 10)]
    for at, one in enumerate(asked):
        number = versions[at % 3].version.number
        assert (one.result()["seen"].tolist(), totals(one)) == ([number], [at * number])


@on_a_loop
async def test_rows_of_other_shapes_other_outputs_and_other_signatures_go_in_calls_of_their_own() -> None:
    setting, of = Setting(1), resident(2)
    asked = setting.ask(
        question(of, 0.0),
        *(question(of, 1.0), question(of, 1.0, columns=2)) * 2,
        *(question(of, 1.0, outputs=("total",)), lookup(of, 1)) * 2,
    )
    assert sorted(requests for _, requests, _ in await setting.over(*asked)) == [1, 2, 2, 2, 2]
    assert [totals(one) for one in asked[1:5]] == [[2.0], [4.0]] * 2
    assert set(asked[5].result()) == {"total"}


@on_a_loop
async def test_a_call_has_no_more_rows_than_it_may() -> None:
    setting, of = Setting(rows=4), resident(1)
    asked = setting.ask(question(of, 0.0), *(question(of, 1.0, 2.0) for _ in range(5)))
    assert await setting.over(*asked) == [("1", 1, 1), ("1", 2, 4), ("1", 2, 4), ("1", 1, 2)]


@on_a_loop
async def test_large_questions_leave_half_of_the_threads_to_small_ones() -> None:
    setting, of = Setting(4, rows=4), resident(1)
    large = setting.ask(*(question(of, *range(9)) for _ in range(5)))
    await turns()
    assert len(setting.threads.gates) == 2
    [small] = setting.ask(question(of, 7.0))
    await turns()
    setting.threads.gates[-1].set()
    await asyncio.wait([small], timeout=300)
    assert totals(small) == [7.0]
    assert not any(one.done() for one in large)
    assert [rows for *_, rows in await setting.over(*large)] == [1, 9, 9, 9, 9, 9]


@on_a_loop
async def test_one_signature_leaves_a_thread_to_others() -> None:
    setting, of = Setting(3, batched=lambda model: False), resident(1)
    asked = setting.ask(*(question(of, 1.0) for _ in range(9)))
    await turns()
    assert len(setting.threads.gates) == 2
    asked += setting.ask(lookup(of, 1))
    await turns()
    assert len(setting.threads.gates) == 3
    assert {requests for _, requests, _ in await setting.over(*asked)} == {1}  # as is asked for: none with another


@on_a_loop
async def test_those_apart_go_in_calls_of_their_own_and_others_do_not_wait_for_all_of_them() -> None:
    setting, of = Setting(1), resident(2)
    asked = setting.ask(*(question(of, float(at)) for at in range(5)), apart=True)
    await turns()
    asked += setting.ask(question(of, 1.0), question(of, 2.0))
    assert await setting.over(*asked) == [("2", 1, 1), ("2", 2, 2), ("2", 4, 4)]


class Serving:
    """What serves now, as requests that name no version ask for it."""

    def __init__(self, of: Resident) -> None:
        self.of: Resident | None = of

    def latest(self) -> Resident:
        if self.of is None:
            raise NotServingError("m", "gone")
        return self.of

    def open(self, asked: Question) -> Question:
        """It named no version."""
        asked.latest = self.latest
        return asked


@on_a_loop
async def test_requests_that_named_no_version_go_together_by_what_serves_when_their_call_begins() -> None:
    setting, serving = Setting(), Serving(resident(1))
    first = serving.open(question(resident(1), 0.0))
    asked = setting.ask(first)
    await turns()  # it runs, and those that come now wait
    waiting = [serving.open(question(resident(number), 1.0)) for number in (2, 2, 3, 3)]
    named = question(resident(2), 1.0)
    asked += setting.ask(*waiting, named)
    serving.of = resident(4)
    assert sorted(await setting.over(*asked)) == [("1", 1, 1), ("2", 1, 1), ("4", 4, 4)]
    assert [one.resident.version.number for one in (first, *waiting, named)] == [1, 4, 4, 4, 4, 2]
    assert [one.result()["seen"].tolist() for one in asked] == [[1.0], [4.0], [4.0], [4.0], [4.0], [2.0]]


@on_a_loop
async def test_a_request_that_fails_names_the_version_by_which_it_failed() -> None:
    setting, serving = Setting(), Serving(resident(1))
    asked = setting.ask(serving.open(lookup(resident(1), 0)))
    await turns()
    waiting = serving.open(lookup(resident(1), 99))
    asked += setting.ask(waiting)
    serving.of = resident(2)
    await setting.over(*asked)
    assert (type(asked[1].exception()), waiting.resident.version.number) == (tf.errors.InvalidArgumentError, 2)


@pytest.mark.parametrize("then", ["another graph", "nothing"])
@on_a_loop
async def test_where_what_serves_cannot_answer_requests_go_by_the_versions_that_they_were_read_for(then: str) -> None:
    setting, serving = Setting(), Serving(resident(1))
    asked = setting.ask(serving.open(question(resident(1), 0.0)))
    await turns()
    second, third = resident(2), resident(3)
    asked += setting.ask(*(serving.open(question(of, 1.0)) for of in (second, second, third, second)))
    await turns()
    serving.of = resident(5, graph_number=1) if then == "another graph" else None
    assert await setting.over(*asked) == [("1", 1, 1), ("2", 2, 2), ("3", 1, 1), ("2", 1, 1)]


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
