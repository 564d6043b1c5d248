"""Streams that callers may keep open for ever: a limit on their number, and their end when the server drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from paramsync.errors import BusyError

from .errors import logged_status
from .memory_budget import MemoryShare
from .methods import Answering, Call

T = TypeVar("T")


class Slots:
    """A limited number of places, shared fairly between addresses and connections. Lives on one event loop.

    When all places are taken, the address with the most places loses a place to an address with fewer. Within one
    address, as behind a proxy, the connection with the most places loses a place to a connection with fewer. A single
    caller may hold all places as long as nobody else asks for a place.
    """

    def __init__(self, most: int, what: str) -> None:
        """`what` names the places in errors, such as "streams"."""
        self._most = most
        self._what = what
        self._taken = 0
        self._held: dict[str, dict[str, list[_Place]]] = {}  # by address and connection

    @contextmanager
    def one(self, connection: str) -> Iterator[None]:
        """Hold a place for the current task within this context. Raises BusyError if no place is free, or once the
        place is lost.

        `connection` is the caller's address in gRPC's form, such as ipv4:127.0.0.1:1234.
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
        address = max(counts, key=counts.__getitem__)
        if counts[address] <= counts.get(mine, 0) + 1:
            address = mine
        these = self._held.get(address, {})
        largest = max(these, key=lambda peer: len(these[peer]), default=connection)
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
    """A method that answers each request of a stream as `prediction` does, in order."""

    prediction: Any
    draining: asyncio.Event

    def answered(self, response: bytes) -> bytes:
        """The message that carries a response."""

    def refused(self, request: bytes, text: str) -> bytes:
        """The message that carries an error. The stream goes on."""


def each(
    method: PredictionStream, answer: Answering, share: Callable[[], MemoryShare]
) -> Callable[[Call], AsyncGenerator[bytes, None]]:
    """Answer the requests of a stream in order. A refused request does not end the stream."""

    async def respond(call: Call) -> AsyncGenerator[bytes, None]:
        async with aclosing(until(method.draining, call.read)) as requests:
            async for request in requests:
                taken = share()
                try:
                    try:
                        # the response itself names the version, so trailing metadata are left out
                        response = method.answered((await answer(request, taken, call))[0])
                    except Exception as error:  # noqa: BLE001, a refused request must not end the stream
                        response = method.refused(request, logged_status(error)[1])
                    del request
                    yield response
                finally:
                    taken.leave()

    return respond


async def until(ended: asyncio.Event, read: Callable[[], Coroutine[Any, Any, T | None]]) -> AsyncGenerator[T, None]:
    """Yield the results of `read` until it returns None or the event is set."""
    end = asyncio.ensure_future(ended.wait())
    try:
        while True:
            reading = asyncio.ensure_future(read())
            try:
                await asyncio.wait({end, reading}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                reading.cancel()
                raise
            if not reading.done() or (message := reading.result()) is None:
                reading.cancel()
                return
            del reading
            kept = [message]
            del message
            yield kept.pop()  # so that this frame keeps no reference to a large message while it waits
    finally:
        end.cancel()
