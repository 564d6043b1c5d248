"""What is prompt is computed when the event loop would rest: then all that came meanwhile goes together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from inferencer.batching.batcher import Batching
from inferencer.event_loop.loop import IdleSelector
from paramsync.inference.questions import Answer, Question
from tests.support.questions import LONG, Held, Told, question, resident, until

_OF = resident(2)


class Setting:
    """Batching on a loop that knows when it rests, for which questions are prompt."""

    def __init__(self, selector: IdleSelector) -> None:
        self.selector = selector
        self.threads = Held(2)
        self.metrics = Told()
        self.batching = Batching(self.threads, self.metrics, selector=selector)

    async def prompt(self) -> None:
        """Until as many rows as no test asks for are computed without a thread."""
        handed_over = -1
        while handed_over < len(self.threads.gates):
            handed_over = len(self.threads.gates)
            asked = asyncio.ensure_future(self.batching.answer(question(_OF, *[1.0] * 64)))
            await until(asked.done, self.threads)
        self.metrics.told.clear()

    def come(self, *values: float) -> list[asyncio.Task[Answer]]:
        """As requests do, which are seen coming before they begin."""
        for _ in values:
            self.batching.announce()
        return [asyncio.ensure_future(self._begin(question(_OF, value))) for value in values]

    async def _begin(self, one: Question) -> Answer:
        self.batching.begin()
        return await self.batching.answer(one)

    @property
    def calls(self) -> list[int]:
        """Of how many requests each was."""
        return [requests for _, requests, _ in self.metrics.told]


def with_selector(test: Callable[[Setting], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        selector = IdleSelector()
        loop = asyncio.SelectorEventLoop(selector)

        async def prepared() -> None:
            setting = Setting(selector)
            await setting.prompt()
            await test(setting)
            setting.batching.close()

        try:
            loop.run_until_complete(asyncio.wait_for(prepared(), LONG))
        finally:
            loop.close()

    run.__dict__.pop("__wrapped__")  # for pytest, which would ask for its arguments
    return run


@contextmanager
def busy() -> Iterator[None]:
    """In this block the loop has always something to do at once."""
    loop = asyncio.get_running_loop()
    ended = False

    def again() -> None:
        if not ended:
            loop.call_soon(again)

    again()
    try:
        yield
    finally:
        ended = True


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def totals(*asked: asyncio.Task[Answer]) -> list[float]:
    return [one.result()["total"].item() for one in asked]


@with_selector
async def test_what_comes_before_the_loop_rests_goes_together(setting: Setting) -> None:
    asked = []
    with busy():
        for value in (1.0, 2.0, 3.0):
            asked += setting.come(value, value + 0.5)
            await turns(5)
    await asyncio.wait(asked)
    await turns()
    assert totals(*asked) == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    # the first may be alone, and be answered at once; all others are held until the loop rests
    assert sum(setting.calls) == 6
    assert max(setting.calls) >= 5
    assert setting.selector.before is None


@with_selector
async def test_a_loop_that_never_rests_computes_all_the_same(setting: Setting) -> None:
    with busy():
        asked = setting.come(1.0, 2.0, 3.0)
        await asyncio.wait(asked)
        assert totals(*asked) == [2.0, 4.0, 6.0]


@with_selector
async def test_one_that_was_seen_coming_and_never_came_is_not_waited_for_long(setting: Setting) -> None:
    setting.batching.announce()
    asked = setting.come(1.0, 2.0)
    await asyncio.wait(asked)
    await turns()
    assert (totals(*asked), setting.calls) == ([2.0, 4.0], [2])


@with_selector
async def test_those_that_are_seen_coming_are_waited_for(setting: Setting) -> None:
    setting.batching.announce()
    first = asyncio.ensure_future(setting.batching.answer(question(_OF, 1.0)))
    await turns()
    assert not first.done()
    setting.batching.begin()
    second = asyncio.ensure_future(setting.batching.answer(question(_OF, 2.0)))
    await asyncio.wait([first, second])
    await turns()
    assert (totals(first, second), setting.calls) == ([2.0, 4.0], [2])


@with_selector
async def test_after_several_one_alone_is_answered_too_and_then_at_once(setting: Setting) -> None:
    asked = setting.come(1.0, 2.0, 3.0)
    await asyncio.wait(asked)
    for value in (4.0, 5.0):
        [alone] = setting.come(value)
        await asyncio.wait([alone])
        assert totals(alone) == [2 * value]
    at_once = asyncio.ensure_future(setting.batching.answer(question(_OF, 6.0)))
    await asyncio.sleep(0)
    assert totals(at_once) == [12.0]
    await turns()
    assert setting.calls == [3, 1, 1, 1]


@with_selector
async def test_what_its_callers_gave_up_before_the_loop_rested_is_not_computed(setting: Setting) -> None:
    with busy():
        asked = setting.come(1.0, 2.0, 3.0)
        await turns(2)
        for one in asked:
            one.cancel()
        await asyncio.wait(asked)
    await asyncio.sleep(0.05)
    assert (setting.calls, setting.batching.held, setting.selector.before) == ([], 0, None)


@with_selector
async def test_versions_that_are_gathered_at_the_same_time_go_in_calls_of_their_own(setting: Setting) -> None:
    other = resident(3)
    with busy():
        asked = setting.come(1.0, 2.0)
        for _ in range(2):
            setting.batching.announce()
        asked += [asyncio.ensure_future(setting._begin(question(other, value))) for value in (5.0, 6.0)]
        await turns(5)
    await asyncio.wait(asked)
    await turns()
    assert totals(*asked) == [2.0, 4.0, 15.0, 18.0]
    assert setting.calls == [2, 2]
