"""A budget for the memory of requests and answers, from a request's first byte until the client has read the answer."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from paramsync.errors import BusyError, TooLargeError
from paramsync.host import memory

SHARES = 12  # the budget is so many times the size of the largest message
_STRING = 40  # bytes that a string takes in addition to its content
_GIVEN_BACK = 8  # the heap is trimmed each time an eighth of the budget has been freed
_SOON = 0.1  # seconds until the memory of a returned share is really freed
LARGE = 1 << 20  # bytes: a larger share leaves a gap in the heap; small shares fill each other's gaps
BRIEF = 4096  # bytes: smaller requests need no share, because their number is limited


class MemoryBudget:
    """The memory of all requests and answers. Lives on one event loop; any thread may call `left`.

    Every request above BRIEF bytes has a share. Every message has a share while it is being received. The memory taken
    is the sum of all shares.
    """

    def __init__(self, most: int, all_taken: memoryview | None = None, slot: int = 0) -> None:
        """`most` is the budget in bytes. The processes of one server share it: each process writes the bytes that it
        takes into its `slot` of the shared memory `all_taken`."""
        self.most = most
        self.taken = 0
        self._all_taken = memoryview(bytearray(8)).cast("Q") if all_taken is None else all_taken
        self._slot = slot
        self._all_taken[slot] = 0  # an earlier process may have used the slot
        self._freed = 0
        self._trimming = False

    def share(self) -> MemoryShare:
        return MemoryShare(self)

    def left(self, size: int) -> None:
        """Count freed bytes. Once many bytes were freed, a thread returns the gaps in the heap to the system."""
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
        """Whether more is taken than the budget."""
        return self.used > self.most

    @property
    def used(self) -> int:
        """Bytes that requests and messages take, in all processes."""
        return sum(self._all_taken)

    def take(self, size: int) -> None:
        """Add `size` bytes, which may be negative, to the memory taken. Only shares call this."""
        self.taken += size
        self._all_taken[self._slot] = self.taken


class MemoryShare:
    """The memory of one request. Call `leave` once the request is over and the kernel has taken its answer."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.size = 0

    def need(self, size: int) -> None:
        """Set the size. Raises TooLargeError if the size never fits, BusyError if it does not fit now."""
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
        """Return how many bytes other shares must give back before this share can have the size."""
        budget = self._budget
        if size <= self.size:
            return 0
        return max(0, budget.used - self.size + size - budget.most)

    def more(self, size: int) -> None:
        """Grow by the size. Raises the same errors as `need`."""
        self.need(self.size + size)

    def keep(self, size: int) -> None:
        """Set the size without a check, because the memory is already taken."""
        assert size >= 0, f"a request was to have {size} bytes"
        self._budget.take(size - self.size)
        self.size = size

    def leave(self) -> None:
        if self.size >= LARGE:
            self._budget.left(self.size)
        self.keep(0)


def weight(arrays: Mapping[str, Any]) -> int:
    """Count the bytes that arrays take. Each string is an object of its own."""
    return sum([array.nbytes + _of_strings(array) for array in arrays.values()])


def _of_strings(array: Any) -> int:
    if array.dtype.kind != "O":
        return 0
    return _STRING * int(array.size) + sum(map(len, array.flat))
