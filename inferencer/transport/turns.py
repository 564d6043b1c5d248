"""Shares the time of an event loop between connections: the cheapest connection's input is taken first."""

from __future__ import annotations

import asyncio
import itertools
from heapq import heappop, heappush
from typing import Protocol

_TURN_SECONDS = 0.001  # after this time of a turn of the event loop, input of expensive connections waits
_FULL_SECONDS = 0.01  # after this time of a turn, input of all connections waits for the next turn
ANSWER_SECONDS = 0.0002  # each answer lowers the cost by this, about the time for reading its call
READ_SECONDS = 0.00005  # the expected time for reading a few frames
READ_BYTES = 1 << 15  # for every 32 kB of a message, its answer lowers the cost by another READ_SECONDS
NEWCOMER_SECONDS = 0.002  # the initial cost of a connection: connections whose calls were answered cost less
_READ = 1 << 18  # most bytes read at a time
_READ_UNDER_LOAD = 1 << 12  # most bytes read at a time from a connection that waits, because its input takes memory


class Served(Protocol):
    """A connection. It may be in the queue only once."""

    @property
    def cost(self) -> float:
        """Seconds that the event loop lately spent on its input, minus a credit for each answer."""

    def serve(self) -> None:
        """Take a bounded part of the input. Call `Turns.wait` again if input is left."""


class Turns:
    """Decides which connections' input is taken in a turn of the event loop. Lives on one event loop.

    Input is taken as it comes until one millisecond of a turn is spent. From then on, connections at or above a
    newcomer's cost wait: a few kilobytes are still read from each of their sockets, then nothing until their turn. In
    the next turns the cheapest connections go first. After ten milliseconds all connections wait, because many may
    become expensive at the same moment.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._spent = 0.0  # seconds spent in this turn
        self._waiting: list[tuple[float, int, int, Served]] = []
        self._order = itertools.count()
        self.is_busy = False
        """Whether `has_time` and `room` must be called: much of this turn is spent, or connections wait."""
        self.buffer = memoryview(bytearray(_READ))
        """All connections share this buffer, because each connection copies its input out at once."""

    def room(self, connection: Served) -> memoryview:
        """Return the part of the buffer that a connection may fill: a small part if the input will wait in memory."""
        is_small = self._waiting and connection.cost >= NEWCOMER_SECONDS
        return self.buffer[:_READ_UNDER_LOAD] if is_small or not self.has_time(connection) else self.buffer

    def has_time(self, connection: Served) -> bool:
        """Whether a connection's input may be taken in this turn."""
        return self._spent < (_FULL_SECONDS if connection.cost < NEWCOMER_SECONDS else _TURN_SECONDS)

    def spend(self, seconds: float) -> None:
        """Count these seconds of the current turn as spent."""
        self._spent += seconds
        if self._spent >= _TURN_SECONDS:
            self._serve_soon()

    def wait(self, connection: Served, size: int = 0) -> None:
        """Queue a connection for the next turn. At equal cost, as among newcomers, small input goes first."""
        heappush(self._waiting, (connection.cost, size, next(self._order), connection))
        self._serve_soon()

    def _serve_soon(self) -> None:
        if not self.is_busy:
            self.is_busy = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        self._spent, self.is_busy = 0.0, False
        try:
            while self._waiting and self.has_time(self._waiting[0][-1]):
                heappop(self._waiting)[-1].serve()
        finally:
            if self._waiting:
                self._serve_soon()
