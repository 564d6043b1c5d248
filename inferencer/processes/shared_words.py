"""SharedWords: memory that the processes of one server share. Words of eight bytes are read and written atomically."""

from __future__ import annotations

import mmap
import os
from types import TracebackType

from ..settings.flags import MOST_WORKERS

_CALLS = 16  # most calls of a worker that the supervisor can see at a time
_SLOTS = MOST_WORKERS + 1  # one more, because a worker's successor starts before the worker has left
_SIZE = 8 * (1 + _SLOTS + _SLOTS * _CALLS)


class SharedWords:
    """`epoch` is one word, the number of the current epoch. Each worker has a slot, with a word in `taken`: the bytes
    of memory that the worker's requests take."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        words = memoryview(mmap.mmap(descriptor, _SIZE)).cast("Q")
        self.epoch = words[:1]
        self.taken = words[1 : 1 + _SLOTS]
        self._calls = words[1 + _SLOTS :]

    def calls(self, slot: int) -> CallsUnderWay:
        """The calls in progress of the worker in this slot."""
        return CallsUnderWay(self._calls[slot * _CALLS : (slot + 1) * _CALLS])


def create() -> int:
    """Create shared words, and return a descriptor of them."""
    descriptor = os.memfd_create("words")
    os.ftruncate(descriptor, _SIZE)
    return descriptor


class CallsUnderWay:
    """The keys of the versions that a worker is computing. The supervisor reads the keys after a crash."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._free = list(range(len(words)))

    def call(self, key: int) -> CallUnderWay:
        """Return a context in which the version counts as being computed. Safe on any thread."""
        return CallUnderWay(self._words, self._free, key)

    def take(self) -> frozenset[int]:
        """Return the keys of the versions that the worker was computing when it ended, and clear them."""
        keys = frozenset(self._words) - {0}
        for place in range(len(self._words)):
            self._words[place] = 0
        return keys


class CallUnderWay:
    """A call in progress. If all places are taken, the supervisor does not see this call."""

    __slots__ = ("_free", "_key", "_place", "_words")

    def __init__(self, words: memoryview, free: list[int], key: int) -> None:
        self._words = words
        self._free = free
        self._key = key
        self._place = -1

    def __enter__(self) -> None:
        try:
            self._place = self._free.pop()
        except IndexError:
            return
        self._words[self._place] = self._key

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._place >= 0:
            self._words[self._place] = 0
            self._free.append(self._place)
