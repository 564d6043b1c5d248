"""An event loop asks before it rests whether there is something to do, and works as any."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext

import pytest

from inferencer.event_loop.loop import IdleSelector
from tests.support.resting import LONG, always_busy, answers, busy


def test_a_loop_works_on_it_as_on_any(loop: asyncio.AbstractEventLoop) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
        writer.close()

    async def talk() -> list[bytes]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        said = []
        for number in range(100):
            writer.write(b"%d\n" % number)
            said.append(await reader.readline())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.readline(), 0.05)
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        return said

    async def later() -> list[int]:
        order: list[int] = []
        all_came = asyncio.Event()
        here = asyncio.get_running_loop()
        now = here.time()
        for delay in (3, 1, 2):
            here.call_at(now + delay / 100, order.append, delay)
        here.call_at(now + 0.04, all_came.set)
        here.call_soon(order.append, 0)
        await all_came.wait()
        return order

    for always in (False, True):
        with always_busy(loop) if always else nullcontext():
            assert asyncio.run_coroutine_threadsafe(later(), loop).result(LONG) == [0, 1, 2, 3]
            expected = [b"%d\n" % number for number in range(100)]
            assert asyncio.run_coroutine_threadsafe(talk(), loop).result(LONG) == expected
    assert answers(loop)


def test_before_a_rest_it_is_asked_whether_there_is_something_to_do(
    selector: IdleSelector, loop: asyncio.AbstractEventLoop
) -> None:
    done: list[str] = []
    ended = threading.Event()

    def before() -> bool:
        done.append("asked")
        if done.count("asked") < 3:
            asyncio.get_running_loop().call_soon(done.append, "done")
            return True
        selector.before = None
        ended.set()
        return False

    with busy(loop):
        selector.before = before
        loop.call_soon_threadsafe(done.append, "came")
    assert ended.wait(LONG)
    assert done == ["came", "asked", "done", "asked", "done", "asked"]
    assert answers(loop)


def test_a_loop_that_never_rests_is_not_asked(selector: IdleSelector, loop: asyncio.AbstractEventLoop) -> None:
    asked = threading.Event()

    def before() -> bool:
        asked.set()
        return False

    with always_busy(loop):
        assert answers(loop)
        selector.before = before
        assert not asked.wait(0.1)
    assert asked.wait(LONG)
    selector.before = None
