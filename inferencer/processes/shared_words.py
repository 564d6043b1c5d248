"""SharedWords: memory that all processes of one server share; words of eight bytes are read and written whole."""

from __future__ import annotations

import mmap
import os
from types import TracebackType

from ..settings.flags import MOST_WORKERS

_CALLS = 16  # of each worker that are seen at a time
_SLOTS = MOST_WORKERS + 1  # one more, for a worker that takes another one's place
_SIZE = 8 * (1 + _SLOTS + _SLOTS * _CALLS)


class SharedWords:
    """`epoch` has one word: what is answered now. `taken` has one for each slot: the bytes that requests of the worker
    which has it take."""

    def __init__(self, descriptor: int) -> None:
        words = memoryview(mmap.mmap(descriptor, _SIZE)).cast("Q")
        self.epoch = words[:1]
        self.taken = words[1 : 1 + _SLOTS]
        self._calls = words[1 + _SLOTS :]

    def calls(self, slot: int) -> CallsUnderWay:
        """Those of the worker in one slot."""
        return CallsUnderWay(self._calls[slot * _CALLS : (slot + 1) * _CALLS])


def create() -> int:
    """The descriptor of such memory."""
    descriptor = os.memfd_create("words")
    os.ftruncate(descriptor, _SIZE)
    return descriptor


class CallsUnderWay:
    """Which versions a worker computes, by their keys: the supervisor reads that once the worker has crashed."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._free = list(range(len(words)))

    def call(self, key: int) -> CallUnderWay:
        """To be entered around a call of a version, on any thread."""
        return CallUnderWay(self._words, self._free, key)

    def take(self) -> frozenset[int]:
        """What the worker that has ended was computing."""
        keys = frozenset(self._words) - {0}
        for place in range(len(self._words)):
            self._words[place] = 0
        return keys


class CallUnderWay:
    """Where all places are taken it is not seen."""

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
