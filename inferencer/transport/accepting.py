"""A server of grpc.aio that asks for calls ahead, and takes all that came in one turn of the event loop.

grpc.aio asks for a call when it has begun with the one before, and sees it two turns of the event loop later. Requests
that came together are then taken one by one, and never share a call of the model: docs/notes/one-host.md has what that
costs. It uses the private name `_make_request_call_future` of grpc; without it calls are taken as grpc does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

AHEAD = 16  # calls that are asked for before the event loop has time for them

_Call = Any  # of grpc's own


class _TakenCall(asyncio.Future[_Call]):
    """A call that came already. `asyncio.wait`, by which grpc waits for it, sees so at once."""

    def add_done_callback(self, call: Callable[[Any], object], *, context: Context | None = None) -> None:
        call(self)


class _AheadServer(cygrpc.AioServer):
    """grpc's part in C, which calls `_make_request_call_future` for each call that it wants next."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked: deque[asyncio.Future[_Call]] = deque()
        self._ends = False

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[_Call]:
        if method is not None:  # reflection registers its own, which is seldom called
            return super()._make_request_call_future(method)  # type: ignore[no-any-return]
        while len(self._asked) < AHEAD and not self._ends:
            asked = super()._make_request_call_future(method)
            asked.add_done_callback(self._came)
            self._asked.append(asked)
        first = self._asked.popleft() if self._asked else super()._make_request_call_future(method)
        if not first.done() or first.cancelled() or first.exception() is not None:
            return first
        taken = _TakenCall()
        taken.set_result(first.result())
        return taken

    async def shutdown(self, grace: float | None) -> None:
        """Calls that came and were not begun with are let go, so that their callers are told."""
        if self.is_running():
            self._ends = True
            self._asked = deque([asked for asked in self._asked if not asked.done()])
        await super().shutdown(grace)

    def _came(self, asked: asyncio.Future[_Call]) -> None:
        if not asked.cancelled():
            asked.exception()  # which nobody else may ask for at the end
        if self._ends and asked in self._asked:
            self._asked.remove(asked)


def server(
    handlers: Sequence[grpc.GenericRpcHandler[Any, Any]], *, options: Sequence[tuple[str, Any]], most: int
) -> grpc.aio.Server:
    """As `grpc.aio.server` makes it, for `most` calls at a time."""
    plain = cygrpc.AioServer
    cygrpc.AioServer = _AheadServer
    try:
        return grpc.aio.server(handlers=handlers, options=options, maximum_concurrent_rpcs=most)
    finally:
        cygrpc.AioServer = plain
