"""Lets a coroutine wait for events of followers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from paramsync.errors import BusyError
from paramsync.following.follower import Follower
from paramsync.following.report import MOST_UNREAD, Subscription
from paramsync.status import EVERY_KIND, Event, EventKind

if TYPE_CHECKING:
    from typing_extensions import Self


class Feed:
    """Receives all events of these kinds from these followers. Use it in a `with` block on an event loop."""

    def __init__(self, followers: Iterable[Follower], kinds: Collection[EventKind] = EVERY_KIND) -> None:
        self._kinds = kinds
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._subscriptions: dict[Follower, Subscription] = {}
        self.follow(followers)

    def follow(self, followers: Iterable[Follower]) -> None:
        """Subscribe to these followers, and to no others."""
        wanted = list(followers)
        for follower in [follower for follower in self._subscriptions if follower not in wanted]:
            self._subscriptions.pop(follower).close()
        for follower in wanted:
            if follower not in self._subscriptions:
                self._subscriptions[follower] = follower.subscribe(self._wake, self._kinds)

    async def changed(self) -> None:
        """Wait until an event has come since the last call."""
        await self._ready.wait()
        self._ready.clear()

    async def next(self) -> list[Event]:
        """Wait for an event, and return all events since the last call, in order for each follower.

        If too many events were left unread, raises BusyError after the last event before the gap.
        """
        await self.changed()
        events = [event for subscription in self._subscriptions.values() for event in subscription.take()]
        if any(subscription.fell_behind for subscription in self._subscriptions.values()):
            if not events:
                raise BusyError(f"left {MOST_UNREAD} events unread, more were lost; ask for the status and watch again")
            self._ready.set()
        return events

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.follow(())

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._ready.set)
