"""Calls that have come and whose message has not: each is given time, and not more than so many are waited for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc

_PATIENCE = 60.0
_PATIENCE_AT_THE_END = 4.0
_LOOKS = 4  # while the time of one call passes


class Arrivals:
    """The calls of one port whose callers owe one message. Lives on one event loop.

    Whoever opens calls and says nothing takes no room from others: where there are too many of that kind, the one that
    was given most time is given up. Where gRPC itself waits for a message it waits without an end.
    """

    def __init__(self, most: int, *, patience: float = _PATIENCE) -> None:
        """`patience` is how many seconds a message may take to come."""
        self._most = most
        self._patience = patience
        self._stopping = False
        self._silent: dict[Any, float] = {}  # contexts, and when their calls came; the oldest first
        self._looking: asyncio.TimerHandle | None = None
        self._endings: set[asyncio.Task[None]] = set()

    async def message(self, context: Any) -> bytes:
        """The message of a call that came just now. What is raised ends the call, and is to be let through."""
        loop = asyncio.get_running_loop()
        if len(self._silent) >= self._most:
            text = f"{self._most} calls are open whose messages did not come yet; try again in a moment"
            self._end(next(iter(self._silent)), grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._silent[context] = loop.time()
        if self._looking is None:
            self._looking = loop.call_later(self._patience / _LOOKS, self._look)
        try:
            content = await context.read()
        finally:
            self._silent.pop(context, None)
        if content is grpc.aio.EOF:  # type: ignore[attr-defined]  # its stubs lack it
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "request: expected one message, found none")
            raise asyncio.CancelledError  # the caller left
        return content  # type: ignore[no-any-return]

    def drain(self) -> None:
        """From now on messages are waited for, but not for long."""
        self._stopping = True
        self._patience = min(self._patience, _PATIENCE_AT_THE_END)
        if self._looking is not None:
            self._looking.cancel()
            self._look()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        late = loop.time() - self._patience
        for context, came in [*self._silent.items()]:
            if came > late:
                break
            if self._stopping:
                self._end(context, grpc.StatusCode.UNAVAILABLE, "the server is stopping; call another one")
            else:
                text = f"request: expected its message within {self._patience:g} s, found that it did not come"
                self._end(context, grpc.StatusCode.DEADLINE_EXCEEDED, text)
        self._looking = loop.call_later(self._patience / _LOOKS, self._look) if self._silent else None

    def _end(self, context: Any, code: grpc.StatusCode, text: str) -> None:
        """What waits for the message is told by gRPC."""
        del self._silent[context]
        ending = asyncio.ensure_future(_abort_apart(context, code, text))
        self._endings.add(ending)  # the event loop would forget it
        ending.add_done_callback(self._endings.discard)


async def _abort(context: Any, code: grpc.StatusCode, text: str) -> None:
    """Raises AbortError. Returns where the caller has left."""
    with contextlib.suppress(grpc.aio.InternalError):
        await context.abort(code, text)


async def _abort_apart(context: Any, code: grpc.StatusCode, text: str) -> None:
    """From another task than the call's, which is over by now or will be."""
    with contextlib.suppress(grpc.aio.AbortError, grpc.aio.UsageError):
        await _abort(context, code, text)
