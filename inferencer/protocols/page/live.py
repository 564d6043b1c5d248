"""Live: tells every page that is open at this worker what changes, by one question to the supervisor for all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

Answer = tuple[int, bytes]
Asks = Callable[..., Awaitable[Any]]
"""Asks the supervisor something, by its name and arguments."""

MOST = 32  # pages at one worker
_UNREAD = 64  # changes that a page may leave unread
_BETWEEN = 0.1  # seconds between two questions for all there is
_PAUSE = 0.2  # seconds between two changes: what happens meanwhile is one
_BEAT = 5.0  # seconds after which a page is told that nothing happened


class SlowReaderError(Exception):
    """Whoever reads does not read as fast as things change."""


class Live:
    """Lives on one event loop."""

    def __init__(self, supervisor: Asks, *, beat: float = _BEAT) -> None:
        self._ask: Callable[[int | None], Awaitable[Answer]] = partial(supervisor, "overview")
        self._beat = beat
        self._readers: set[Reader] = set()
        self._asking: asyncio.Task[None] | None = None
        self._whole: asyncio.Future[Answer] | None = None
        self._whole_at = 0.0
        self.ended = False

    def __len__(self) -> int:
        return len(self._readers)

    async def whole(self) -> Answer:
        """All there is. Those who ask at a time get one answer."""
        if self._whole is None or self._whole.done():
            self._whole = asyncio.ensure_future(self._ask_whole())
        return await asyncio.shield(self._whole)

    async def _ask_whole(self) -> Answer:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._whole_at + _BETWEEN - loop.time()))
        self._whole_at = loop.time()
        return await self._ask(None)

    def read(self) -> Reader:
        reader = Reader(self)
        self._readers.add(reader)
        return reader

    def end(self) -> None:
        """Every page is told that it is over."""
        self.ended = True
        for reader in self._readers:
            reader.wake.set()
        if self._asking is not None:
            self._asking.cancel()

    def _leave(self, reader: Reader) -> None:
        self._readers.discard(reader)
        if not self._readers and self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _follow(self, since: int) -> None:
        if not self.ended and (self._asking is None or self._asking.done()):
            self._asking = asyncio.ensure_future(self._run(since))

    async def _run(self, since: int) -> None:
        """Ends with the last page. Where the supervisor does not answer, its worker ends too."""
        while True:
            sequence, change = await self._ask(since)
            for reader in self._readers:
                reader.put(since, sequence, change)
            since = sequence
            await asyncio.sleep(_PAUSE)


class Reader:
    """One page, in a `with` block."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._sequence: int | None = None
        self._unread: deque[tuple[int, int, bytes]] = deque()
        self._fell_behind = False
        self.wake = asyncio.Event()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._live._leave(self)

    def put(self, since: int, sequence: int, change: bytes) -> None:
        self._fell_behind = self._fell_behind or len(self._unread) >= _UNREAD
        if not self._fell_behind:
            self._unread.append((since, sequence, change))
        self.wake.set()

    async def next(self) -> tuple[str, bytes] | None:
        """An event and its data: "state" is all there is, and "change" what changed, "beat" that nothing did; None at
        the end. Raises SlowError."""
        while not self._live.ended:
            if self._sequence is None:
                return await self._state()
            while self._unread:
                since, sequence, change = self._unread.popleft()
                if sequence <= self._sequence:
                    continue
                if since > self._sequence:  # there is a gap
                    return await self._state()
                self._sequence = sequence
                return "change", change
            if self._fell_behind:
                raise SlowReaderError
            self.wake.clear()
            self._live._follow(self._sequence)
            try:
                await asyncio.wait_for(self.wake.wait(), self._live._beat)
            except asyncio.TimeoutError:
                return "beat", b"{}"
        return None

    async def _state(self) -> tuple[str, bytes]:
        self._sequence, state = await self._live.whole()
        return "state", state
