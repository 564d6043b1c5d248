"""An event loop for ports that strangers reach: a turn takes few events, however many there are."""

from __future__ import annotations

import asyncio
import math
import os
import select
import selectors

_MOST = 64  # events in a turn: thousands come when a client ends that had as many connections


def new_event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(_FewAtATime())


class _FewAtATime(selectors.EpollSelector):
    """Events that are left come first in the next turn. A call takes several turns, so that they must be short.

    The selector of the standard library takes all events that there are. When a client ended that had 8,180
    connections, one call of somebody else took 127 to 163 ms with it, and 53 to 78 ms with this one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._epoll = select.epoll.fromfd(os.dup(self.fileno()))

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        seconds = -1 if timeout is None else math.ceil(max(0.0, timeout) * 1000) / 1000
        try:
            events = self._epoll.poll(seconds, _MOST)
        except InterruptedError:
            return []
        keys = self.get_map()
        ready = [(keys[file], event) for file, event in events if file in keys]
        return [(key, _meant(event) & key.events) for key, event in ready]

    def close(self) -> None:
        self._epoll.close()
        super().close()


def _meant(event: int) -> int:
    """A file that has failed is ready for everything."""
    write = selectors.EVENT_WRITE if event & ~select.EPOLLIN else 0
    return write | (selectors.EVENT_READ if event & ~select.EPOLLOUT else 0)
