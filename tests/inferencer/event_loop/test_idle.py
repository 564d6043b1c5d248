"""An event loop goes first: a thread beside it works while it rests, but for the end of its patience, and is told."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left, bisect_right
from contextlib import nullcontext

import pytest

from inferencer.event_loop.idle import Rests
from paramsync.host import yielding
from tests.support.programs import eventually
from tests.support.resting import FEW, LONG, Guests, always_busy, answers, busy, gives, put_off, turns


@pytest.mark.parametrize("waiting", [0, 3])
def test_a_loop_works_on_it_as_on_any(rests: Rests, loop: asyncio.AbstractEventLoop, waiting: int) -> None:
    """Whether threads give way to it or not."""

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

    ended = threading.Event()

    def give() -> None:
        while not ended.is_set():
            gives(rests, 20)

    several = Guests(waiting, give)
    try:
        for always in (False, True):
            with always_busy(loop) if always else nullcontext():
                assert asyncio.run_coroutine_threadsafe(later(), loop).result(LONG) == [0, 1, 2, 3]
                expected = [b"%d\n" % number for number in range(100)]
                assert asyncio.run_coroutine_threadsafe(talk(), loop).result(LONG) == expected
        assert answers(loop)
    finally:
        ended.set()
    several.join()


@pytest.mark.usefixtures("patient")
def test_while_a_loop_rests_nobody_waits(rests: Rests, loop: asyncio.AbstractEventLoop) -> None:
    eventually(rests.is_resting, lambda: "a loop that has nothing to do")
    Guests(1, lambda: gives(rests, 10_000)).join()


@pytest.mark.usefixtures("patient")
def test_while_it_is_busy_all_wait(rests: Rests, loop: asyncio.AbstractEventLoop) -> None:
    """And go on as soon as it rests."""
    for _ in range(5):
        with busy(loop):
            one = Guests(1, lambda: gives(rests))
            time.sleep(0.03)
            assert not one.are_done()
        one.join()


@pytest.mark.usefixtures("patient")
def test_what_it_was_woken_for_goes_first(rests: Rests, loop: asyncio.AbstractEventLoop) -> None:
    """Whether or not it has woken up."""
    done: list[int] = []

    def work(number: int) -> None:
        time.sleep(0.0003)
        done.append(number)

    def ask() -> None:
        for number in range(300):
            loop.call_soon_threadsafe(work, number)
            gives(rests)
            assert done[-1:] == [number]

    Guests(1, ask).join()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("piece", [0.0, 0.0003])
def test_pieces_of_work_lie_between_those_of_the_loop(
    rests: Rests, loop: asyncio.AbstractEventLoop, piece: float
) -> None:
    """However short they are."""
    worked: list[float] = []
    spans: list[tuple[float, float]] = []
    working = asyncio.run_coroutine_threadsafe(turns(60, spans), loop)

    def work() -> None:
        while not working.done():
            with rests.first():
                yielding.give()
                worked.append(time.monotonic())
                if piece:
                    time.sleep(piece)

    one = Guests(1, work)
    working.result(LONG)
    one.join()
    within = [bisect_left(worked, ended) - bisect_right(worked, began) for began, ended in spans]
    assert max(within) <= 1  # begun as the loop began, which is to be rare
    assert sum(within) < len(spans) / 3
    assert len(worked) > len(spans)


@pytest.mark.usefixtures("impatient")
def test_in_one_block_a_thread_waits_no_longer_than_its_patience(rests: Rests, loop: asyncio.AbstractEventLoop) -> None:
    with always_busy(loop):
        for _ in range(2):  # the next block has its own
            assert FEW / 2 < put_off(rests) < 5 * FEW


@pytest.mark.usefixtures("patient")
def test_of_several_that_wait_each_goes_on(rests: Rests, loop: asyncio.AbstractEventLoop) -> None:
    spans: list[tuple[float, float]] = []
    working = asyncio.run_coroutine_threadsafe(turns(1000, spans), loop)
    Guests(4, lambda: gives(rests, 30)).join()
    assert not working.done()  # they went on while it rested for a moment, not once it had nothing to do
    working.cancel()


def test_in_one_place_a_thread_waits_for_a_moment_only(
    rests: Rests, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferencer.event_loop.idle.PATIENCE", LONG)
    with busy(loop):
        Guests(4, lambda: gives(rests)).join()


def test_before_a_rest_it_is_asked_whether_there_is_something_to_do(
    rests: Rests, loop: asyncio.AbstractEventLoop
) -> None:
    done: list[str] = []
    ended = threading.Event()

    def before() -> bool:
        done.append("asked")
        if done.count("asked") < 3:
            asyncio.get_running_loop().call_soon(done.append, "done")
            return True
        rests.before = None
        ended.set()
        return False

    with busy(loop):
        rests.before = before
        loop.call_soon_threadsafe(done.append, "came")
    assert ended.wait(LONG)
    assert done == ["came", "asked", "done", "asked", "done", "asked"]
    assert answers(loop)


def test_a_loop_that_never_rests_is_not_asked(rests: Rests, loop: asyncio.AbstractEventLoop) -> None:
    asked = threading.Event()

    def before() -> bool:
        asked.set()
        return False

    with always_busy(loop):
        assert answers(loop)
        rests.before = before
        assert not asked.wait(0.1)
    assert asked.wait(LONG)
    rests.before = None
