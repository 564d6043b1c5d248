"""Streams that callers may keep open for ever: a limit on their number, and their end when the server drains."""

from __future__ import annotations

import asyncio
from collections import Counter
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
        self._places: dict[_Place, None] = {}  # the newest last

    @contextmanager
    def one(self, connection: str) -> Iterator[None]:
        """Hold a place for the current task within this context. Raises BusyError if no place is free and none can be
        taken from another caller, or once the place is lost.

        `connection` is the caller's address in gRPC's form, such as ipv4:127.0.0.1:1234.
        """
        place = _Place(connection, connection.rpartition(":")[0], asyncio.current_task())
        if len(self._places) >= self._most:
            self._make_room(place)
        self._places[place] = None
        try:
            yield
        except asyncio.CancelledError:
            if place not in self._places:
                raise BusyError(f"{self._full()}; this one was given to another caller") from None
            raise
        finally:
            self._places.pop(place, None)

    def _make_room(self, newcomer: _Place) -> None:
        """Take a place from the address that holds most, unless the newcomer's address would then hold more.

        In that case, take a place from the newcomer's address, unless the newcomer's connection would then hold more
        than the connection that lost the place: raise BusyError instead. Within an address, the connection that holds
        most loses its newest place.
        """
        addresses = Counter(place.address for place in self._places)
        [(address, most)] = addresses.most_common(1)
        if most <= addresses[newcomer.address] + 1:
            address = newcomer.address
        connections = Counter(place.connection for place in self._places if place.address == address)
        largest = max(connections, key=connections.__getitem__, default=newcomer.connection)
        if address == newcomer.address and connections[largest] <= connections[newcomer.connection] + 1:
            raise BusyError(f"{self._full()}; try again once one was closed")
        lost = next(place for place in reversed(self._places) if place.connection == largest)
        del self._places[lost]
        if lost.task is not None:
            lost.task.cancel()

    def _full(self) -> str:
        return f"{self._most} {self._what} are open already"


@dataclass(eq=False, slots=True)
class _Place:
    connection: str
    address: str
    task: asyncio.Task[Any] | None


class PredictionStream(Protocol):
    """A method that answers each request of a stream as `prediction` does, in order."""

    prediction: Any
    draining: asyncio.Event

    def answered(self, response: bytes) -> bytes:
        """Return the message that carries a response."""

    def refused(self, request: bytes, text: str) -> bytes:
        """Return the message that carries an error. The stream goes on."""


def each(
    method: PredictionStream, answer: Answering, share: Callable[[], MemoryShare]
) -> Callable[[Call], AsyncGenerator[bytes, None]]:
    """Return a handler that answers a stream's requests in order. A refused request does not end the stream."""

    async def respond(call: Call) -> AsyncGenerator[bytes, None]:
        async with aclosing(until(method.draining, call.read)) as requests:
            async for request in requests:
                taken = share()
                try:
                    try:
                        # The response itself names the version, so trailing metadata are left out.
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
