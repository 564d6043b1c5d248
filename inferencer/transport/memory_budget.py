"""How much memory messages may take at once, by whatever protocol: as they come, as values, computed, and unread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

from paramsync.errors import BusyError, TooLargeError
from paramsync.host import memory

SHARES = 12  # of the largest message
_STRING = 40  # bytes that one takes beside its own
_GIVEN_BACK = 8  # times while as much is freed as there may be
_SOON = 0.1  # seconds: who leaves a share lets go of it in a moment
LARGE = 1 << 20  # bytes of a share that leaves a gap in the heap; small ones fill each other's
BRIEF = 4096  # bytes, below which what a request takes is bounded by how many requests there may be


class MemoryBudget:
    """Lives on one event loop. Every request that is more than brief has a share of it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._freed = 0
        self._soon: asyncio.TimerHandle | None = None
        self.coming: Callable[[], int] = lambda: 0
        """What messages take that have not come whole: whoever waits for them says so here."""

    def share(self) -> MemoryShare:
        return MemoryShare(self)

    def left(self, size: int) -> None:
        """So much was freed: after much of it, what lies between other memory is given back too."""
        self._freed += size
        if self._freed > self.most // _GIVEN_BACK and self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(_SOON, self._give_back)

    def _give_back(self) -> None:
        self._freed, self._soon = 0, None
        threading.Thread(target=memory.trim_heap, name="give back", daemon=True).start()

    @property
    def over(self) -> bool:
        """Whether there is more than may be."""
        return self.taken + self.coming() > self.most


class MemoryShare:
    """What one request takes now. It is left when the request is over, and its answer was read."""

    __slots__ = ("_room", "size")

    def __init__(self, room: MemoryBudget) -> None:
        self._room = room
        self.size = 0

    def need(self, size: int) -> None:
        """Have so much from now on. Raises TooLargeError for what never fits, BusyError for what does not fit now."""
        room = self._room
        if size > room.most:
            raise TooLargeError("request, with all that is made of it", limit=room.most, found=size)
        coming = room.coming() if size > self.size else 0
        if size > self.size and room.taken - self.size + size + coming > room.most:
            raise BusyError(
                f"requests and unread answers take {room.taken + coming} bytes: expected {room.most} at most"
                f" with {size - self.size} more; try again in a moment"
            )
        self.keep(size)

    def more(self, size: int) -> None:
        """Have so much beside what it has. Raises the same."""
        self.need(self.size + size)

    def keep(self, size: int) -> None:
        """Have so much, whether there is room or not: what is there is there."""
        self._room.taken += size - self.size
        self.size = size

    def leave(self) -> None:
        if self.size >= LARGE:
            self._room.left(self.size)
        self.keep(0)


def weight(arrays: Mapping[str, Any]) -> int:
    """What arrays take, in bytes. Of strings each is an object."""
    return sum([array.nbytes + _of_strings(array) for array in arrays.values()])


def _of_strings(array: Any) -> int:
    if array.dtype.kind != "O":
        return 0
    return _STRING * int(array.size) + sum(map(len, array.flat))
