"""A server of grpc.aio that takes calls as they come: on its own it asks for one when it has begun with the one before.

From one to the next it is then five turns of the event loop, and a thread that has to wake up. Of a server that is busy
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

_Call = Any  # of grpc's own


class _AheadServer(cygrpc.AioServer):
    """grpc's part in C, which calls `_make_request_call_future` for each call that it wants next."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asking: set[asyncio.Task[None]] = set()
        self._came: deque[_Call | Exception] = deque()
        self._wanted: asyncio.Future[_Call] | None = None
        self._ended = False

    async def shutdown(self, grace: float | None) -> None:
        if self.is_running():
            self._ended = True
            self._came.clear()
        await super().shutdown(grace)

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[_Call]:
        if method is not None:  # of its own, which nobody has here
            one: asyncio.Future[_Call] = super()._make_request_call_future(method)
            return one
        loop = asyncio.get_running_loop()
        while len(self._asking) + len(self._came) < AHEAD:
            asking = loop.create_task(self._ask())
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        wanted: asyncio.Future[_Call] = loop.create_future()
        if self._came:
            _answer(wanted, self._came.popleft())
        else:
            self._wanted = wanted
        return wanted

    async def _ask(self) -> None:
        found: _Call | Exception
        try:
            found = await self._request_call()
        except Exception as error:  # noqa: BLE001, it is raised where the call is wanted
            found = error
        wanted, self._wanted = self._wanted, None
        if wanted is not None and not wanted.done():
            _answer(wanted, found)
        elif not self._ended:  # else it is let go, and so its caller is told that the server ends
            self._came.append(found)


def _answer(wanted: asyncio.Future[_Call], found: _Call | Exception) -> None:
    if isinstance(found, Exception):
        wanted.set_exception(found)
    else:
        wanted.set_result(found)


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
