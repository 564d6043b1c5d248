"""The models of one server by name, and the requests that are being answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from inferencer.follower import Follower
from paramsync.errors import UnknownModelError


class Models:
    """Immutable. Iterates over the followers."""

    def __init__(self, followers: Iterable[Follower]) -> None:
        self._followers = {one.model: one for one in followers}

    def __iter__(self) -> Iterator[Follower]:
        return iter(self._followers.values())

    def find(self, model: str) -> Follower:
        """Raises UnknownModelError."""
        if model not in self._followers:
            raise UnknownModelError(model, self._followers)
        return self._followers[model]

    def only(self, model: str) -> Follower:
        """The same, where a server of one model need not be told its name."""
        return next(iter(self)) if not model and len(self._followers) == 1 else self.find(model)

    def some(self, model: str) -> list[Follower]:
        """The one of that name; all where none is named."""
        return [self.find(model)] if model else list(self)


class InFlight:
    """Counts the requests being answered. Used from the event loop alone."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()

    async def none(self) -> None:
        """Returns when nothing is being answered."""
        await self._none.wait()
