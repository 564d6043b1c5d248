"""The door of a port: notices each call that comes and goes, and closes so that none of them is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

QUIET_SECONDS = 0.5  # without a call, after which none is thought to be on its way
_MOST_ANSWERING = 3.0  # seconds from the first step of closing to the next, where calls go on coming
_MOST_HOLDING = 2.0
_LAST = 1.0  # of the grace, for those who read what was sent, where calls are open until then
_STEPS = 10
_STOPPING = "the server is stopping; call another one, or try again later"


class Door(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # it takes none when it runs
    """Asked first for a handler for each call, which it leaves to others until the end. Lives on one event loop."""

    def __init__(self) -> None:
        self._came = 0
        self._open = 0
        self._holding = False
        self._stopped = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        self._came += 1
        return grpc.stream_stream_rpc_method_handler(self._refuse) if self._holding else None

    def taken_up(self) -> None:
        """The call of this task is open from now on, until all that it is answered was handed to the kernel."""
        task = asyncio.current_task()
        assert task is not None
        self._open += 1
        task.add_done_callback(self._over)  # a callback of the call's own context would leave a cycle

    def _over(self, _: Any) -> None:
        self._open -= 1

    async def close(self, server: grpc.aio.Server, *, grace: float, quiet_seconds: float) -> None:
        """Stop the server within the grace, without a loss.

        A stop cancels what has come and has not been taken up yet: so it has to happen while nothing comes. And once
        callers know of it, gRPC closes each connection with the last byte of its last answer, of which the kernel then
        drops what is on its way as soon as the caller says anything more: so it has to happen once all is answered.

        1. What comes is answered, until nothing did for a while and all has been answered.
        2. Where callers call again and again, each call is held, so that all of them come to wait for their answer.
        3. The stop tells callers to use this connection no more, and waits until they have read what was sent before.
           What was held is refused; what was taken up before that is answered.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        most = grace - _LAST
        if not await self._quiet(quiet_seconds, most=min(_MOST_ANSWERING, most)):
            self._holding = True
            most = _MOST_HOLDING
        if self._holding or self._open:
            await self._quiet(quiet_seconds, most=min(most, end - _LAST - loop.time()))
        loop.call_later(quiet_seconds / _STEPS, self._stopped.set)
        await server.stop(end - loop.time())

    async def _quiet(self, seconds: float, *, most: float) -> bool:
        """Wait until no call came for some seconds and none is open. Whether, at the end, none came for so long."""
        # in steps: while the loop is busy it does not take up what comes, and that time must not count
        loop = asyncio.get_running_loop()
        end = loop.time() + most
        still = 0
        while (still < _STEPS or self._open) and loop.time() < end:
            before = self._came
            await asyncio.sleep(seconds / _STEPS)
            still = still + 1 if self._came == before else 0
        return still >= _STEPS

    async def _refuse(self, requests: AsyncIterator[bytes], context: Any) -> None:
        await self._stopped.wait()
        await context.abort(grpc.StatusCode.UNAVAILABLE, _STOPPING)
