"""Digests tell one content of a large buffer from another, and leave the cache that processors share to the others.

Who reads hundreds of megabytes as they lie has them pass through that cache, and what others had there is gone: answers
of a server beside it took half as long again. What fits into a cache of the processor's own, the C library copies
without (`rep movsb`, on x86-64), and from there it is read.
"""

from __future__ import annotations

import threading
import time

import numpy as np
from xxhash import xxh3_128

from paramsync.dtypes import Array

_BIT = 1 << 18  # bytes that the smallest of such caches has room for
_PATIENCE = 0.002  # seconds; as much as there is at once takes a tenth of it
_OFTEN = 3  # times that it did not suffice: some thread keeps Python's lock, and is to be asked for it less


class Digests:
    """May be asked by several threads, and serves one at a time: they would wait for Python's lock at every bit."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._bit = np.empty(_BIT, np.uint8)
        self._late = 0

    def of(self, content: Array) -> bytes:
        """A buffer's, of 128 bits."""
        with self._turn:
            found = xxh3_128()
            end = time.perf_counter() + _PATIENCE
            start = 0
            while start < len(content) and self._late < _OFTEN and time.perf_counter() < end:
                part = content[start : start + _BIT]
                bit = self._bit[: len(part)]
                np.copyto(bit, part)
                found.update(bit.data)
                start += len(part)
            self._late += start < len(content)
            found.update(content[start:].data)
            return found.digest()
