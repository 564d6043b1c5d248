"""Streams that callers keep open for as long as they please: one request after another, until the server drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, NoReturn, Protocol, TypeVar

import grpc

from paramsync.errors import BusyError

T = TypeVar("T")


class Places:
    """For what callers hold for as long as they please, so that whoever holds many takes no room from other calls.

    Lives on one event loop.
    """

    def __init__(self, most: int, what: str) -> None:
        """`what` is what there is one of in each place: "streams"."""
        self._most = most
        self._what = what
        self._taken = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """For as long as it is held. Raises BusyError where there is none left."""
        if self._taken >= self._most:
            raise BusyError(f"{self._most} {self._what} are open already; try again once one was closed")
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


class PredictionStream(Protocol):
    """A method that answers each request of a stream, in their order, as `prediction` does."""

    prediction: Any
    draining: asyncio.Event

    def answered(self, response: bytes) -> bytes:
        """What a caller is sent who is answered."""

    def refused(self, request: bytes, text: str) -> bytes:
        """What a caller is sent who is not. The stream goes on."""


def each(method: PredictionStream, answer: Callable[[bytes, Any], Awaitable[bytes]]) -> Callable[..., Any]:
    """All requests of a stream, of which `answer` answers one."""

    async def call(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async with aclosing(until(method.draining, requests)) as those:
            async for one in those:
                mine = _One(context)
                try:
                    try:
                        response = method.answered(await answer(one, mine))
                    except _RefusedError as error:
                        response = method.refused(one, str(error))
                    yield response
                finally:
                    mine.over()

    return call


async def until(ended: asyncio.Event, requests: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """The requests that come before the event."""
    end = asyncio.ensure_future(ended.wait())
    try:
        while True:
            one = asyncio.ensure_future(anext(requests, None))
            await asyncio.wait({end, one}, return_when=asyncio.FIRST_COMPLETED)
            if not one.done() or (found := one.result()) is None:
                one.cancel()
                return
            yield found
    finally:
        end.cancel()


class _RefusedError(Exception):
    """One request of a stream is not answered."""


class _One:
    """The context of one request of a stream: what ends a call ends none of the others."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._callbacks: list[Callable[[Any], None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def set_trailing_metadata(self, pairs: Any) -> None:
        """There is only one for the whole stream: each answer names its version itself."""

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have it called when this request is over, not the stream."""
        self._callbacks.append(callback)

    def over(self) -> None:
        for callback in self._callbacks:
            callback(self)

    async def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        raise _RefusedError(text)
