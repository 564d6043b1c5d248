"""Copies tensors into a data file, and compares them with what is in one, at the speed of memory."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from xxhash import xxh3_128

from paramsync.checkpoint import placement
from paramsync.checkpoint.examine import DType, Finding, Test, joined, soundness
from paramsync.checkpoint.file_pool import KnownPiece, PooledFile
from paramsync.dtypes import Array
from paramsync.host import memory, parallel
from paramsync.tensorbundle.checksums import crc32c

_WORTH_A_THREAD = 4 << 20  # bytes; a thread has to start, and takes turns with the others
_PROBE = 1 << 12  # bytes that tell most tensors that changed from those that did not
_NOTHING = np.empty(0, np.uint8)
_WORTH_KNOWING = 1 << 20  # bytes of a piece whose finding is kept for the next write
_MISSES = 2  # comparisons more that ended late, and in vain, than did not: the rest is copied without a look

_CHUNK = 1 << 18  # bytes that the smallest cache of a processor's own has room for
_SECONDS = 0.002  # for the chunks of one digest; as much as is copied at once takes a tenth of it
_LATE = 3  # digests that took longer: some thread keeps the GIL, and is to be asked for it less


def write(
    file: PooledFile,
    layout: placement.Layout,
    tensors: list[Array],
    dtypes: Sequence[DType | None],
    copied: Callable[[int], object],
) -> list[Finding]:
    """Copy the bytes of tensors to their places; returns findings about the bytes in the file.

    `dtypes` are those of tensors whose values are to be looked at, None for others, which count as sound.

    A tensor is taken out of `tensors` once its bytes are copied, and `copied` is called with its number, on any thread:
    whoever pins a buffer for this can let go of it. The last come first, as most networks are trained from their last
    layer on: an update of a pinned buffer costs a copy into new pages.
    """
    content = file.content
    pieces = _PieceCache(file)
    tests = [None if dtype is None else soundness(dtype) for dtype in dtypes]
    parts: list[list[tuple[int, int, Finding]]] = [[] for _ in tensors]
    counts = Counter(piece.tensor for portion in layout.portions for piece in portion)
    done = [itertools.count(1) for _ in tensors]  # asked for the next number, each gives it to one thread only

    def copy(portion: tuple[placement.Piece, ...]) -> None:
        first, last = portion[0], portion[-1]
        file.allocate(layout.offsets[first.tensor] + first.start, layout.offsets[last.tensor] + last.stop)
        for piece in portion:
            start = layout.offsets[piece.tensor] + piece.start
            source, test = tensors[piece.tensor][piece.start : piece.stop], tests[piece.tensor]
            known = pieces.find(start, source, test)
            if known is None:
                file.put(start, source)
                target = content[start : start + len(source)].data  # still in the cache
                known = KnownPiece(Finding(crc32c(target), not target or test is None or test(target)))
            pieces.note(start, len(source), test, known)
            del source
            parts[piece.tensor].append((piece.start, piece.stop, known.finding))
            if next(done[piece.tensor]) == counts[piece.tensor]:
                tensors[piece.tensor] = _NOTHING
                copied(piece.tensor)

    parallel.each(copy, reversed(layout.portions), threads=_threads(layout.end))
    return [joined(findings) for findings in parts]


def same(pairs: Sequence[tuple[Array, Array]]) -> list[bool]:
    """Whether the two buffers of each pair, which are equally long, have the same bytes."""
    found = [memory.equal(one, other, 0, min(_PROBE, len(one))) for one, other in pairs]
    left = [at for at, (one, _) in enumerate(pairs) if found[at] and len(one) > _PROBE]

    def compare(portion: tuple[placement.Piece, ...]) -> None:
        for piece in portion:
            at = left[piece.tensor]
            if found[at] and not memory.equal(*pairs[at], piece.start, piece.stop):
                found[at] = False

    sizes = [len(pairs[at][0]) for at in left]
    parallel.each(compare, placement.portions(sizes), threads=_threads(sum(sizes)))
    return found


class _PieceCache:
    """Finds pieces of a file that already hold the bytes which are to be written there.

    Few rows of a large table change from version to version. Where they lie together, most of an earlier version's file
    is what it should be already. Digests, of which the file's own is known from the second time on, show that with half
    as many bytes read as a comparison.
    """

    def __init__(self, file: PooledFile) -> None:
        self._content = file.content
        self._before = file.take_known()
        self._now = file.known
        self._digests = Digests()
        self._misses = 0

    def find(self, start: int, source: Array, test: Test | None) -> KnownPiece | None:
        """The piece of these bytes, if they are in the file, at their place."""
        size = len(source)
        known = self._before.get((start, size, test))
        target = self._content[start : start + size]
        if known is None or self._misses > _MISSES or not memory.equal(target, source, 0, _PROBE):
            return None
        known.digest = known.digest or self._digests.of(target)
        same = known.digest == self._digests.of(source)
        self._misses += -1 if same else 1
        return known if same else None

    def note(self, start: int, size: int, test: Test | None, known: KnownPiece) -> None:
        if size >= _WORTH_KNOWING:
            self._now[start, size, test] = known


class Digests:
    """Computes digests of large buffers, and leaves the cache that processors share to others.

    Reading hundreds of megabytes as they lie moves them through that cache, and evicts what others had there: answers
    of a server beside it took half as long again. The C library copies a chunk that fits into a processor's own cache
    past the shared one (`rep movsb`, on x86-64), and the digest reads it from there.

    Several threads may ask; one is served at a time: they would wait for the GIL at every chunk.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._chunk = np.empty(_CHUNK, np.uint8)
        self._late = 0

    def of(self, content: Array) -> bytes:
        """The digest of a buffer, of 128 bits."""
        with self._turn:
            digest = xxh3_128()
            end = time.perf_counter() + _SECONDS
            start = 0
            while start < len(content) and self._late < _LATE and time.perf_counter() < end:
                part = content[start : start + _CHUNK]
                chunk = self._chunk[: len(part)]
                np.copyto(chunk, part)
                digest.update(chunk.data)
                start += len(part)
            self._late += start < len(content)
            digest.update(content[start:].data)
            return digest.digest()


def _threads(size: int) -> int:
    return min(parallel.THREADS, 1 + size // _WORTH_A_THREAD)
