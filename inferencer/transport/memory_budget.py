"""How much memory messages may take at once, by whatever protocol: as they come, as values, computed, and unread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
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
    """Lives on one event loop, but for `left` and `over`. Every request that is more than brief has a share of it."""

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
        self.coming = 0
        """What messages take that have not come whole: whoever waits for them adds to it."""

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
        """What requests take, and messages that have not come whole, in all processes."""
        self._tell()
        return sum(self._all_taken)

    def take(self, size: int) -> None:
        """Take so much more, or less."""
        self.taken += size
        self._tell()

    def _tell(self) -> None:
        self._all_taken[self._slot] = self.taken + self.coming


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
        self._budget.take(size - self.size)
        self.size = size

    def leave(self) -> None:
        if self.size >= LARGE:
            self._budget.left(self.size)
        self.keep(0)


def weight(arrays: Mapping[str, Any]) -> int:
    """What arrays take, in bytes. Of strings each is an object."""
    return sum([array.nbytes + _of_strings(array) for array in arrays.values()])


def _of_strings(array: Any) -> int:
    if array.dtype.kind != "O":
        return 0
    return _STRING * int(array.size) + sum(map(len, array.flat))
