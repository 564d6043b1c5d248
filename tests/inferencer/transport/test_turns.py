"""Calls are taken some at a time, so that what has begun is done first; nobody waits for one that waits itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import grpc
import pytest

from inferencer.event_loop.loop import IdleSelector, Loop
from inferencer.transport import accepting
from tests.support.resting import LONG, always_busy

_CALL = "/a.Service/Call"
_MANY = 96
_T = TypeVar("_T")


class _Counted(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """How many calls have begun, and how many of these are open."""

    def __init__(self, work: Callable[[], Awaitable[object]]) -> None:
        self._work = work
        self.begun = self.open = 0

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return grpc.unary_unary_rpc_method_handler(self._answer) if details.method == _CALL else None

    async def _answer(self, request: bytes, context: Any) -> bytes:
        self.begun += 1
        self.open += 1
        try:
            await self._work()
        finally:
            self.open -= 1
        return request


async def _some_turns() -> None:
    """As a call takes that is read, computed and written."""
    for _ in range(5):
        await asyncio.sleep(0)


def on_a_loop(coroutine: Callable[[IdleSelector], Coroutine[Any, Any, _T]]) -> _T:
    selector = IdleSelector()
    loop = Loop(selector)
    try:
        return loop.run_until_complete(asyncio.wait_for(coroutine(selector), LONG))
    finally:
        loop.close()


@asynccontextmanager
async def serving(counted: _Counted, selector: IdleSelector | None) -> AsyncIterator[Callable[..., Any]]:
    """What calls a server."""
    server = accepting.server([counted], options=(), most=1000, selector=selector)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ready = threading.Event()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:  # which has threads of its own
        ask = channel.unary_unary(_CALL, bytes, bytes)
        grpc.channel_ready_future(channel).add_done_callback(lambda _: ready.set())
        while not ready.is_set():
            await asyncio.sleep(0.001)
        try:
            yield partial(ask.future, timeout=LONG)
        finally:
            await server.stop(None)


def calls(ask: Callable[..., Any]) -> list[Any]:
    return [ask(str(one).encode()) for one in range(_MANY)]


async def answers(waiting: list[Any]) -> list[object]:
    """What each brought, which is a status where it was no answer."""
    while not all(one.done() for one in waiting):
        await asyncio.sleep(0.001)
    return [one.code() if one.exception() else one.result() for one in waiting]


def calls_that_came(ask: Callable[..., Any]) -> list[Any]:
    """All of them are there when the loop looks again."""
    waiting = calls(ask)
    time.sleep(0.3)
    assert not any(one.done() for one in waiting)
    return waiting


def begun_at_once(limited: bool) -> tuple[int, int]:
    """Of calls that came together, before the loop rests, and then."""

    async def run(selector: IdleSelector) -> tuple[int, int]:
        counted = _Counted(_some_turns)
        async with serving(counted, selector if limited else None) as ask:
            waiting = calls_that_came(ask)
            with always_busy(asyncio.get_running_loop()):
                await asyncio.sleep(1.0)
                begun = counted.begun
            assert await answers(waiting) == [str(one).encode() for one in range(_MANY)]
        return begun, counted.begun

    return on_a_loop(run)


def test_no_more_begin_until_the_loop_would_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "_PATIENCE", LONG)
    assert begun_at_once(limited=True) == (accepting.AT_A_TIME, _MANY)
    assert begun_at_once(limited=False) == (_MANY, _MANY)


def test_nobody_waits_for_a_call_that_waits_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of them there are: the loop rests."""
    monkeypatch.setattr(accepting, "_PATIENCE", LONG)

    async def run(selector: IdleSelector) -> int:
        opened = asyncio.Event()
        counted = _Counted(opened.wait)
        async with serving(counted, selector) as ask:
            waiting = calls(ask)
            while counted.open < _MANY:
                await asyncio.sleep(0.001)
            opened.set()
            await answers(waiting)
        return counted.begun

    assert on_a_loop(run) == _MANY


def test_a_loop_that_never_rests_takes_them_too() -> None:
    async def run(selector: IdleSelector) -> tuple[int, int]:
        counted = _Counted(_some_turns)
        async with serving(counted, selector) as ask:
            waiting = calls_that_came(ask)
            with always_busy(asyncio.get_running_loop()):
                before = selector.count
                await answers(waiting)
                return counted.begun, selector.count - before

    begun, rested = on_a_loop(run)
    assert (begun, rested) == (_MANY, 0)


def test_what_was_gathered_is_computed_before_more_is_taken() -> None:
    """Else, where calls come without an end, those that were taken would wait for all."""
    selector, asked = IdleSelector(), []

    def due(name: str, found: bool) -> Callable[[], bool]:
        def ask() -> bool:
            asked.append(name)
            return found

        return ask

    selector.before, selector.last = due("before", True), due("last", True)
    assert selector.select(LONG) == []
    assert asked == ["before"]
    selector.before = due("before", False)
    assert selector.select(LONG) == []
    assert (asked, selector.count) == (["before", "before", "last"], 0)
    selector.last = due("last", False)
    assert selector.select(0.001) == []
    assert selector.count == 1
    selector.close()


def test_nothing_is_left_once_all_were_taken() -> None:
    async def run(selector: IdleSelector) -> None:
        async with serving(_Counted(_some_turns), selector) as ask:
            for _ in range(3):
                await answers(calls(ask))
            assert selector.last is None
            assert not [one for one in vars(asyncio.get_running_loop())["_scheduled"] if "_Turns" in repr(one)]

    on_a_loop(run)
