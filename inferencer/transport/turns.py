"""Whose input is taken next: the time of an event loop is shared between connections by what each of them cost."""

from __future__ import annotations

import asyncio
import itertools
from heapq import heappop, heappush
from typing import Protocol

_TURN_SECONDS = 0.001  # of a turn of the event loop, for input of connections that cost much
_FULL_SECONDS = 0.01  # of a turn, after which input of all connections waits for the next one
ANSWER_SECONDS = 0.0002  # of cost that an answered call makes up for: about what reading it takes
READ_SECONDS = 0.00005  # that a read of few frames is expected to take
READ_BYTES = 1 << 15  # of a message: its answer makes up for one more read for each
NEWCOMER_SECONDS = 0.002  # that a new connection has cost: it comes after connections whose calls were answered
_READ = 1 << 18  # bytes at a time
_READ_UNDER_LOAD = 1 << 12  # of a connection that waits for its turn with them


class Served(Protocol):
    """A connection. It waits at most once at a time."""

    @property
    def cost(self) -> float:
        """Seconds of the event loop that reading it took lately, less what its answered calls make up for."""

    def serve(self) -> None:
        """Take a bounded part of its input. It may wait again."""


class Turns:
    """Lives on one event loop.

    Input is taken as it comes until it took its part of a turn of the event loop. Then connections that cost more than
    their answers make up for wait, and their sockets are not read; in the next turns those that cost least go first.
    Once a turn is full, all wait: many may begin to cost much at the same moment.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._spent = 0.0  # in this turn
        self._waiting: list[tuple[float, int, int, Served]] = []
        self._order = itertools.count()
        self.is_busy = False
        """Whether `has_time` and `room` need be asked: much of this turn is spent, or connections wait."""
        self.buffer = memoryview(bytearray(_READ))
        """All connections read into it; each takes what it read out at once."""

    def room(self, connection: Served) -> memoryview:
        """The part of the buffer that it may fill: what waits for its turn takes memory."""
        is_small = self._waiting and connection.cost >= NEWCOMER_SECONDS
        return self.buffer[:_READ_UNDER_LOAD] if is_small or not self.has_time(connection) else self.buffer

    def has_time(self, connection: Served) -> bool:
        """Whether its input may be taken at once."""
        return self._spent < (_FULL_SECONDS if connection.cost < NEWCOMER_SECONDS else _TURN_SECONDS)

    def spend(self, seconds: float) -> None:
        """Count so many seconds of this turn as spent."""
        self._spent += seconds
        if self._spent >= _TURN_SECONDS:
            self._serve_soon()

    def wait(self, connection: Served, size: int = 0) -> None:
        """With so many bytes: of connections that cost the same, such as new ones, those with few go first."""
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
