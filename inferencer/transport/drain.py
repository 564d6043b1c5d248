"""The door of a port: notices each call that comes and goes, and closes so that none of them is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

QUIET_SECONDS = 0.5  # without a call, after which none is thought to be on its way
_MOST_ANSWERING = 3.0  # seconds from the first step of closing to the next, where calls go on coming or take long
_MOST_HOLDING = 2.0  # and until a call that came after that is refused
_LAST = 1.0  # of the grace, which the stop is left with where calls are open for long
_STEPS = 10
_PAUSE_SECONDS, _MOST_PAUSE = 0.02, 0.2  # the same while answers are held back
_STOPPING = "the server is stopping; call another one, or try again later"


class Drain(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # it takes none when it runs
    """Asked first for a handler for each call, which it leaves to others until the end. Lives on one event loop."""

    def __init__(self) -> None:
        self._came = 0
        self._open: dict[asyncio.Task[Any], str | None] = {}  # and by which peer, while it is being answered
        self._holding = False
        self._resumed: asyncio.Event | None = None
        self._stopped = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        self._came += 1
        return grpc.stream_stream_rpc_method_handler(self._refuse) if self._holding else None

    def taken_up(self) -> asyncio.Task[Any]:
        """The call of this task is open from now on, until all that it is answered was handed to the kernel."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = None
        task.add_done_callback(self._over)  # a callback of the call's own context would leave a cycle
        return task

    @property
    def paused(self) -> bool:
        """Whether answers are held back: `resumed` is waited for before one is given to gRPC."""
        return self._resumed is not None

    async def resumed(self) -> None:
        while self._resumed is not None:
            await self._resumed.wait()

    def answering(self, task: asyncio.Task[Any], peer: str) -> None:
        """What the call of this task is answered is given to gRPC next, for this peer."""
        self._open[task] = peer

    def answered(self, task: asyncio.Task[Any]) -> None:
        """It was written; another answer of the same call may follow."""
        self._open[task] = None

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """Hold back answers until callers that wait for these say no more, and what was begun is written.

        Not for long, where others go on calling, or do not read.
        """
        self._resumed = asyncio.Event()
        try:
            await self._quiet(_PAUSE_SECONDS, most=_MOST_PAUSE, over=lambda: not self.peers)
            yield
        finally:
            self._resumed.set()
            self._resumed = None

    def _all_answered(self) -> bool:
        return not self._open

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._open.pop(task, None)

    @property
    def peers(self) -> Collection[str]:
        """To whom an answer is being written, as gRPC names them."""
        return {peer for peer in self._open.values() if peer is not None}

    async def close(self, server: grpc.aio.Server, *, grace: float, quiet_seconds: float) -> None:
        """Stop the server within the grace, without a loss.

        A stop cancels what has come and has not been taken up yet: so it has to happen while nothing comes. And once
        callers know of it, gRPC closes each connection with the last byte of its last answer, of which the kernel then
        drops what is on its way as soon as the caller says anything more: so it has to happen once all is answered.

        1. What comes is answered, until nothing did for a while and all has been answered.
        2. Where callers call again and again, or something takes long, each call that comes is held, so that all
           callers come to wait, and is refused after a while; what was taken up before is answered.
        3. The stop tells callers to use this connection no more, and waits until they have read what was sent before.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        if not await self._quiet(quiet_seconds, most=_MOST_ANSWERING, over=self._all_answered):
            self._holding = True
            await self._quiet(quiet_seconds, most=_MOST_HOLDING, over=self._all_answered)
            while self._open and loop.time() < end - _LAST:
                await asyncio.sleep(quiet_seconds / _STEPS)
        loop.call_later(quiet_seconds / _STEPS, self._stopped.set)
        await server.stop(end - loop.time())

    async def _quiet(self, seconds: float, *, most: float, over: Callable[[], bool]) -> bool:
        """Whether, before too many seconds were over, none had come for some, and what there was is over."""
        # in steps: while the loop is busy it does not take up what comes, and that time must not count
        loop = asyncio.get_running_loop()
        end = loop.time() + most
        still = 0
        while (still < _STEPS or not over()) and loop.time() < end:
            before = self._came
            await asyncio.sleep(seconds / _STEPS)
            still = still + 1 if self._came == before else 0
        return still >= _STEPS and over()

    async def _refuse(self, requests: AsyncIterator[bytes], context: Any) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), _MOST_HOLDING)
        await context.abort(grpc.StatusCode.UNAVAILABLE, _STOPPING)
