"""How much memory messages may take at once, by whatever protocol: as they come, as values, computed, and unread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from paramsync.errors import BusyError, TooLargeError
from paramsync.host import memory

_log = logging.getLogger("paramsync.services")

SHARES = 12  # of the largest message
_STRING = 40  # bytes that one takes beside its own
_GIVEN_BACK = 8  # times while as much is freed as there may be
_SOON = 0.1  # seconds: who leaves a share lets go of it in a moment
LARGE = 1 << 20  # bytes of a share that leaves a gap in the heap; small ones fill each other's
BRIEF = 4096  # bytes, below which what a request takes is bounded by how many requests there may be


class MemoryBudget:
    """Lives on one event loop, but for `left`. Every request that is more than brief has a share of it, and so have
    messages that come. What is taken is the sum of the shares, which nothing else changes: no share is below zero, and
    one that is dropped with a size gives it back."""

    def __init__(self, most: int, all_taken: memoryview | None = None, slot: int = 0) -> None:
        """The processes of one server have one budget: in memory that they share, `all_taken` has what each of them
        takes, this one in its `slot`."""
        self.most = most
        self.taken = 0
        self._all_taken = memoryview(bytearray(8)).cast("Q") if all_taken is None else all_taken
        self._slot = slot
        self._all_taken[slot] = 0  # of one that had it before
        self._freed = 0
        self._trimming = False
        self._dropped: deque[int] = deque()  # sizes of shares that were not left; any thread collects garbage
        self._said = False

    def share(self) -> MemoryShare:
        return MemoryShare(self)

    def left(self, size: int) -> None:
        """So much was freed: after much of it, what lies between other memory is given back too, by another thread."""
        self._freed += size
        if self._freed > self.most // _GIVEN_BACK and not self._trimming:
            self._freed, self._trimming = 0, True
            threading.Thread(target=self._trim, name="trim heap", daemon=True).start()

    def _trim(self) -> None:
        threading.Event().wait(_SOON)
        self._trimming = False
        memory.trim_heap()

    @property
    def over(self) -> bool:
        """Whether there is more than may be."""
        return self.used > self.most

    @property
    def used(self) -> int:
        """What requests and messages take, in all processes."""
        if self._dropped:
            self._give_back()
        return sum(self._all_taken)

    def take(self, size: int) -> None:
        """Take so much more, or less. For shares alone."""
        self.taken += size
        self._all_taken[self._slot] = self.taken

    def dropped(self, size: int) -> None:
        """A share of this size is gone without being left. Any thread."""
        self._dropped.append(size)

    def _give_back(self) -> None:
        while self._dropped:
            size = self._dropped.popleft()
            self.take(-size)
            self.mended(f"{size} bytes belonged to a request that is gone")

    def mended(self, found: str) -> None:
        """Log a fault in how memory was counted, the first of this process."""
        if not self._said:
            self._said = True
            _log.error("the memory of requests was counted wrong, and is put right: %s; please report this", found)


class MemoryShare:
    """What one request takes now. It is left when the request is over, and its answer was read."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.size = 0

    def need(self, size: int) -> None:
        """Have so much from now on. Raises TooLargeError for what never fits, BusyError for what does not fit now."""
        budget = self._budget
        if size > budget.most:
            raise TooLargeError("request, with all that is made of it", limit=budget.most, found=size)
        if self.lacks(size):
            raise BusyError(
                f"requests and unread answers take {budget.used} bytes: expected {budget.most} at"
                f" most with {size - self.size} more; try again in a moment"
            )
        self.keep(size)

    def lacks(self, size: int) -> int:
        """How many bytes others would have to leave, so that this may have so much."""
        budget = self._budget
        if size <= self.size:
            return 0
        return max(0, budget.used - self.size + size - budget.most)

    def more(self, size: int) -> None:
        """Have so much beside what it has. Raises the same."""
        self.need(self.size + size)

    def keep(self, size: int) -> None:
        """Have so much, whether there is room or not: what is there is there."""
        if size < 0:
            self._budget.mended(f"a request was to have {size} bytes")
            size = 0
        self._budget.take(size - self.size)
        self.size = size

    def leave(self) -> None:
        if self.size >= LARGE:
            self._budget.left(self.size)
        self.keep(0)

    def __del__(self) -> None:
        if self.size:
            self._budget.dropped(self.size)


def weight(arrays: Mapping[str, Any]) -> int:
    """What arrays take, in bytes. Of strings each is an object."""
    return sum([array.nbytes + _of_strings(array) for array in arrays.values()])


def _of_strings(array: Any) -> int:
    if array.dtype.kind != "O":
        return 0
    return _STRING * int(array.size) + sum(map(len, array.flat))
