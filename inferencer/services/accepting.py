"""A server of grpc.aio that takes calls as they come: on its own it asks for one when it has begun with the one before.

From one to the next it is then four turns of the event loop, and a thread that has to wake up. Of a server that is busy
for most of the time, calls come to wait longer to be taken than to be answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

AHEAD = 16  # calls that are asked for before anybody has time for them

_Taken = asyncio.Task[Any]


class _AheadServer(cygrpc.AioServer):
    """grpc's part in C, which calls `_make_request_call_future` for each call that it wants next."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked: set[_Taken] = set()
        self._came: deque[_Taken] = deque()
        self._wanted: asyncio.Future[Any] | None = None
        self._ended = False

    async def shutdown(self, grace: float | None) -> None:
        self._ended = True
        self._came.clear()
        await super().shutdown(grace)

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        if method is not None:  # of its own, which nobody has here
            one: asyncio.Future[Any] = super()._make_request_call_future(method)
            return one
        loop = asyncio.get_running_loop()
        while len(self._asked) + len(self._came) < AHEAD:
            asked = loop.create_task(self._request_call())
            self._asked.add(asked)
            asked.add_done_callback(self._has_come)
        self._wanted = wanted = loop.create_future()
        if self._came:
            self._hand_over(self._came.popleft())
        return wanted

    def _has_come(self, asked: _Taken) -> None:
        self._asked.discard(asked)
        if self._wanted is not None and not self._wanted.done():
            self._hand_over(asked)
        elif not self._ended:
            self._came.append(asked)
        elif not asked.cancelled():
            asked.exception()  # or a call, which is let go: so its caller is told that the server ends

    def _hand_over(self, came: _Taken) -> None:
        assert self._wanted is not None
        wanted, self._wanted = self._wanted, None  # a call lasts for as long as anything leads to it
        if came.cancelled():
            wanted.cancel()
        elif (error := came.exception()) is not None:
            wanted.set_exception(error)
        else:
            wanted.set_result(came.result())


def server(
    handlers: Sequence[grpc.GenericRpcHandler[Any, Any]], *, options: Sequence[tuple[str, Any]], most: int
) -> grpc.aio.Server:
    """As `grpc.aio.server` makes it, for `most` calls at a time; just that where grpc is not as it is known here."""
    plain = cygrpc.AioServer
    if hasattr(plain, "_make_request_call_future"):
        cygrpc.AioServer = _AheadServer
    try:
        return grpc.aio.server(handlers=handlers, options=options, maximum_concurrent_rpcs=most)
    finally:
        cygrpc.AioServer = plain
