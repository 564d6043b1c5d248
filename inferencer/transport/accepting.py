"""A server of grpc.aio that takes calls as they come, some at a time: on its own it asks for one when it has begun with
the one before.

From one to the next it is then five turns of the event loop, and a thread that has to wake up. Of a server that is busy
for most of the time, calls come to wait longer to be taken than to be answered. But where all are taken that came, what
belongs to each has left the processor's caches when its turn comes, and whoever has fallen behind falls behind further.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from functools import partial
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from ..event_loop.cycles import leave_no_cycles
from ..event_loop.loop import IdleSelector

AHEAD = 16  # calls that are asked for before anybody has time for them
AT_A_TIME = 16  # calls that are taken before the event loop has rested, or would
_PATIENCE = 0.002  # seconds after which so many more are taken where HTTP or streams keep the loop from resting
_OF_WAIT = "_on_completion"  # what asyncio.wait has futures call

_Call = Any  # of grpc's own


class _AheadServer(cygrpc.AioServer):
    """grpc's part in C, which calls `_make_request_call_future` for each call that it wants next."""

    def __init__(self, turns: _Turns, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked = 0
        self._came: deque[_Call | Exception] = deque()
        self._wanted: _Wanted | None = None
        self._ended = False
        self._turns = turns

    async def shutdown(self, grace: float | None) -> None:
        if self.is_running():
            self._ended = True
            self._take()  # else who waits for one that was put off would wait for ever
            self._came.clear()
        await super().shutdown(grace)

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[_Call]:
        if method is not None:  # of its own, which nobody has here
            one: asyncio.Future[_Call] = super()._make_request_call_future(method)
            return one
        while self._asked + len(self._came) < AHEAD:
            self._asked += 1
            self._step(self._request_call())
        self._wanted = wanted = _Wanted(loop=asyncio.get_running_loop())
        self._take()
        return wanted

    def _step(self, asking: Coroutine[Any, Any, _Call], _: object = None) -> None:
        """As a task does, but for the turn of the event loop that it takes before it begins."""
        found: _Call | Exception
        try:
            waited = asking.send(None)
        except StopIteration as ended:
            found = ended.value
        except Exception as error:  # noqa: BLE001, it is raised where the call is wanted
            found = error
        else:
            waited._asyncio_future_blocking = False  # so a task says that it has seen it
            waited.add_done_callback(partial(self._step, asking))
            return
        self._asked -= 1
        self._came.append(found)
        if not self._take() and self._ended:
            self._came.clear()  # it is let go, and so its caller is told that the server ends

    def _take(self) -> bool:
        """The call that came first, if somebody wants one now. Whether it was taken."""
        wanted = self._wanted
        if not self._came or wanted is None or wanted.done() or not (self._ended or self._turns.one_more(self._take)):
            return False
        found, self._wanted = self._came.popleft(), None
        if isinstance(found, Exception):
            wanted.set_exception(found)
        else:
            wanted.set_result(found)
        wanted.tell()
        return True


class _Turns:
    """So many calls are taken until the event loop rests, or would; then so many more."""

    def __init__(self, selector: IdleSelector | None) -> None:
        """Without a `selector` all are taken at once."""
        self._selector = selector
        self._rest = 0
        self._taken = 0
        self._late: asyncio.TimerHandle | None = None

    def one_more(self, take: Callable[[], bool]) -> bool:
        """Whether it is taken now; else `take` is called when it is its turn."""
        if self._selector is None:
            return True
        if self._rest != self._selector.count:
            self._rest, self._taken = self._selector.count, 0
        if self._taken < AT_A_TIME:
            self._taken += 1
            return True
        if self._late is None:
            again = partial(self._again, self._selector, take)
            self._selector.last = again
            self._late = asyncio.get_running_loop().call_later(_PATIENCE, again)
        return False

    def _again(self, selector: IdleSelector, take: Callable[[], bool]) -> bool:
        selector.last = None
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._taken = 0
        return take()


class _Wanted(asyncio.Future[_Call]):
    """gRPC waits for it with `asyncio.wait`, which is told at once: else it is two turns of the event loop a call.

    To everybody else it is a future as any.
    """

    _waiting: Callable[[Any], object] | None = None

    def add_done_callback(self, call: Callable[[Any], object], *, context: Context | None = None) -> None:
        if self._waiting is not None or getattr(call, "__name__", "") != _OF_WAIT:
            super().add_done_callback(call, context=context)
            return
        self._waiting = call
        if self.done():
            self.tell()

    def remove_done_callback(self, call: Callable[[Any], object]) -> int:
        if call is self._waiting:
            self._waiting = None
            return 1
        return super().remove_done_callback(call)

    def cancel(self, msg: object = None) -> bool:
        cancelled = super().cancel(msg)
        self.tell()
        return cancelled

    def tell(self) -> None:
        if (waiting := self._waiting) is not None and self.done():
            self._waiting = None
            waiting(self)


def server(
    handlers: Sequence[grpc.GenericRpcHandler[Any, Any]],
    *,
    options: Sequence[tuple[str, Any]],
    most: int,
    selector: IdleSelector | None = None,
) -> grpc.aio.Server:
    """As `grpc.aio.server` makes it, for `most` calls at a time; just that where grpc is not as it is known here.

    With the `selector` of its event loop, some calls are taken at a time, else all that came. One server of
    a loop may have them.
    """
    leave_no_cycles()
    plain = cygrpc.AioServer
    if hasattr(plain, "_make_request_call_future") and hasattr(plain, "_request_call"):
        cygrpc.AioServer = partial(_AheadServer, _Turns(selector))
    try:
        return grpc.aio.server(handlers=handlers, options=options, maximum_concurrent_rpcs=most)
    finally:
        cygrpc.AioServer = plain
