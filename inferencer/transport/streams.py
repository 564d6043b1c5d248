"""Streams that callers keep open for as long as they please: one request after another, until the server drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

import grpc

from paramsync.errors import BusyError

from .read_timeout import ReadTimeouts

T = TypeVar("T")


class Slots:
    """For what callers hold for as long as they please, so that whoever holds many takes no room from other calls.

    Where all are taken, the address that holds most gives one up for another address that holds fewer, and where it is
    its own, as behind a proxy, the connection that holds most for another connection that holds fewer. So one of them
    may have all as long as nobody else asks. Lives on one event loop.
    """

    def __init__(self, most: int, what: str) -> None:
        """`what` is what there is one of in each place: "streams"."""
        self._most = most
        self._what = what
        self._taken = 0
        self._held: dict[str, dict[str, list[_Place]]] = {}  # by address and connection

    @contextmanager
    def one(self, connection: str) -> Iterator[None]:
        """For as long as it is held, by the task that asks. Raises BusyError where there is none left, or no more.

        `connection` is as gRPC names it, such as ipv4:127.0.0.1:1234.
        """
        if self._taken >= self._most:
            self._make_room(connection)
        place = _Place(asyncio.current_task())
        self._held.setdefault(_address(connection), {}).setdefault(connection, []).append(place)
        self._taken += 1
        try:
            yield
        except asyncio.CancelledError:
            if place.lost:
                raise BusyError(f"{self._full()}; this one was given to another caller") from None
            raise
        finally:
            if not place.lost:
                self._leave(connection, place)

    def _make_room(self, connection: str) -> None:
        mine, counts = _address(connection), {address: _count(these) for address, these in self._held.items()}
        address = max(counts, key=lambda one: counts[one])
        if counts[address] <= counts.get(mine, 0) + 1:
            address = mine
        these = self._held.get(address, {})
        largest = max(these, key=lambda one: len(these[one]), default=connection)
        if address == mine and len(these.get(largest, ())) <= len(these.get(connection, ())) + 1:
            raise BusyError(f"{self._full()}; try again once one was closed")
        place = these[largest][-1]
        place.lost = True
        self._leave(largest, place)
        if place.task is not None:
            place.task.cancel()

    def _leave(self, connection: str, place: _Place) -> None:
        self._taken -= 1
        these = self._held[address := _address(connection)]
        these[connection].remove(place)
        if not these[connection]:
            del these[connection]
        if not these:
            del self._held[address]

    def _full(self) -> str:
        return f"{self._most} {self._what} are open already"


@dataclass(eq=False, slots=True)
class _Place:
    task: asyncio.Task[Any] | None
    lost: bool = False


def _address(connection: str) -> str:
    return connection.rpartition(":")[0]


def _count(held: dict[str, list[_Place]]) -> int:
    return sum([len(places) for places in held.values()])


class PredictionStream(Protocol):
    """A method that answers each request of a stream, in their order, as `prediction` does."""

    prediction: Any
    draining: asyncio.Event

    def answered(self, response: bytes) -> bytes:
        """What a caller is sent who is answered."""

    def refused(self, request: bytes, text: str) -> bytes:
        """What a caller is sent who is not. The stream goes on."""


def each(
    method: PredictionStream, answer: Callable[[bytes, Any], Awaitable[bytes]], arrivals: ReadTimeouts
) -> Callable[[Any, str], AsyncGenerator[bytes, None]]:
    """All requests of a stream, of which `answer` answers one."""

    async def call(context: Any, peer: str) -> AsyncGenerator[bytes, None]:
        with arrivals.open(context, peer) as ended:
            async with aclosing(until((method.draining, ended), partial(_read, context))) as those:
                async for response in answered(those, context):
                    yield response
            if ended.is_set():
                raise arrivals.busy()

    async def answered(those: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for one in those:
            arrivals.came(context, len(one))
            mine = _One(context)
            try:
                try:
                    response = method.answered(await answer(one, mine))
                except _RefusedError as error:
                    response = method.refused(one, str(error))
                del one
                yield response
            finally:
                mine.over()

    return call


async def until(
    ended: Iterable[asyncio.Event], read: Callable[[], Coroutine[Any, Any, T | None]]
) -> AsyncGenerator[T, None]:
    """What is read before any of these events, up to None."""
    ends = [asyncio.ensure_future(one.wait()) for one in ended]
    try:
        while True:
            one = asyncio.ensure_future(read())
            await asyncio.wait({*ends, one}, return_when=asyncio.FIRST_COMPLETED)
            if not one.done() or (found := one.result()) is None:
                one.cancel()
                return
            del one
            kept = [found]
            del found
            yield kept.pop()  # and is not kept here until the next one comes
    finally:
        for end in ends:
            end.cancel()


async def _read(context: Any) -> bytes | None:
    """The next request; gRPC's own iterator would keep it until there is another one."""
    content = await context.read()
    return None if content is grpc.aio.EOF else content  # type: ignore[attr-defined]  # its stubs lack it


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
