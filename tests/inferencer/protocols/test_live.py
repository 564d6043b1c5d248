"""What open pages are told: by one question for all of them, without a gap, and never more than they read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from inferencer.protocols.page.live import Live, Reader, SlowReaderError


class Supervisor:
    """Numbers that only rise. It counts who asks."""

    def __init__(self) -> None:
        self.sequence = 1
        self.asked: list[int | None] = []
        self.waiting = 0
        self._changed = asyncio.Event()

    async def ask(self, what: str, since: int | None) -> tuple[int, bytes]:
        assert what == "overview"
        self.asked.append(since)
        if since is None:
            return self.sequence, b"all %d" % self.sequence
        self.waiting += 1
        assert self.waiting == 1, "one question at a time"
        while self.sequence <= since:
            await self._changed.wait()
        self.waiting -= 1
        return self.sequence, b"%d to %d" % (since, self.sequence)

    def change(self) -> None:
        self.sequence += 1
        self._changed.set()
        self._changed = asyncio.Event()


def run(test: Callable[[Live, Supervisor], Awaitable[Any]], *, beat: float = 60.0) -> None:
    async def whole() -> None:
        supervisor = Supervisor()
        live = Live(supervisor.ask, beat=beat)
        await asyncio.wait_for(test(live, supervisor), 30)
        live.end()

    asyncio.run(whole())


def test_ten_pages_are_one_question() -> None:
    async def test(live: Live, supervisor: Supervisor) -> None:
        readers = [live.read() for _ in range(10)]
        assert await asyncio.gather(*(one.next() for one in readers)) == [("state", b"all 1")] * 10
        assert supervisor.asked == [None]
        news = asyncio.gather(*(one.next() for one in readers))
        await asyncio.sleep(0)
        supervisor.change()
        assert await news == [("change", b"1 to 2")] * 10
        assert supervisor.asked[:2] == [None, 1]

    run(test)


def test_nobody_is_asked_once_nobody_looks() -> None:
    async def test(live: Live, supervisor: Supervisor) -> None:
        with live.read() as reader:
            await reader.next()
            waiting = asyncio.ensure_future(reader.next())
            await asyncio.sleep(0.01)
            assert supervisor.waiting == 1
            waiting.cancel()
        await asyncio.sleep(0.01)
        asked = len(supervisor.asked)
        supervisor.change()
        await asyncio.sleep(0.3)
        assert len(supervisor.asked) == asked

    run(test)


def test_a_page_that_came_between_misses_nothing_and_gets_nothing_twice() -> None:
    async def test(live: Live, supervisor: Supervisor) -> None:
        reader = live.read()
        assert await reader.next() == ("state", b"all 1")
        reader.put(0, 1, b"old")  # which all there is had already
        reader.put(1, 2, b"next")
        assert await reader.next() == ("change", b"next")
        supervisor.change()
        supervisor.change()
        reader.put(3, 4, b"after a gap")
        assert await reader.next() == ("state", b"all 3")

    run(test)


async def _taken(reader: Reader) -> int:
    count = 0
    while await reader.next() is not None:
        count += 1
    return count


def test_a_page_that_leaves_too_much_unread_is_dropped() -> None:
    async def test(live: Live, supervisor: Supervisor) -> None:
        reader = live.read()
        await reader.next()
        for sequence in range(1, 10_000):
            reader.put(sequence, sequence + 1, b"x")
        assert len(reader._unread) < 100
        with pytest.raises(SlowReaderError):
            await _taken(reader)

    run(test)


def test_a_page_is_told_that_nothing_happens_and_of_the_end() -> None:
    async def test(live: Live, supervisor: Supervisor) -> None:
        reader = live.read()
        await reader.next()
        assert await reader.next() == ("beat", b"{}")
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0)
        live.end()
        assert await waiting is None

    run(test, beat=0.02)
