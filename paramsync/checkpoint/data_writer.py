"""Copies tensors into a data file, and compares them with what is in one, at the speed of memory."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from paramsync.checkpoint import placement
from paramsync.checkpoint.examine import DType, Finding, Test, soundness
from paramsync.checkpoint.file_pool import DataFile, Known
from paramsync.checkpoint.fingerprint import Digests
from paramsync.dtypes import Array
from paramsync.host import memory, parallel
from paramsync.tensorbundle.checksums import combine, crc32c

_SHARE = 4 << 20  # bytes that are worth one more thread, which has to start, and takes turns with the others
_GLANCE = 1 << 12  # bytes that tell most tensors that changed from those that did not
_NOTHING = np.empty(0, np.uint8)
_WORTH = 1 << 20  # bytes of a piece, of which it is worth knowing what was found there before
_LOST = 2  # comparisons more that ended late, and in vain, than did not: the rest is copied unseen


def write(
    file: DataFile,
    layout: placement.Layout,
    tensors: list[Array],
    dtypes: Sequence[DType | None],
    copied: Callable[[int], object],
) -> list[Finding]:
    """Copy the bytes of tensors to their places; returns their checksums, which are of what is in the file.

    `dtypes` are of those tensors whose values are to be looked at too, None for others, which count as sound.

    A tensor is taken out of `tensors` once its bytes are copied, and `copied` is called with its number, on any thread:
    whoever pins a buffer for this can let go of it. The last come first, as most networks are trained from their last
    layer on: an update of what is still pinned costs a copy into new pages.
    """
    content = file.content
    recall = _Recall(file)
    tests = [None if one is None else soundness(one) for one in dtypes]
    parts: list[list[tuple[int, int, Finding]]] = [[] for _ in tensors]  # start, stop, what is between
    pieces = Counter(piece.tensor for portion in layout.portions for piece in portion)
    done = [itertools.count(1) for _ in tensors]  # asked for the next number, each gives it to one thread only

    def copy(portion: tuple[placement.Piece, ...]) -> None:
        first, last = portion[0], portion[-1]
        file.touch(layout.offsets[first.tensor] + first.start, layout.offsets[last.tensor] + last.stop)
        for piece in portion:
            start = layout.offsets[piece.tensor] + piece.start
            source, test = tensors[piece.tensor][piece.start : piece.stop], tests[piece.tensor]
            known = recall.known(start, source, test)
            if known is None:
                file.put(start, source)
                target = content[start : start + len(source)].data  # still in the cache
                known = Known(Finding(crc32c(target), not target or test is None or test(target)))
            recall.note(start, len(source), test, known)
            del source
            parts[piece.tensor].append((piece.start, piece.stop, known.finding))
            if next(done[piece.tensor]) == pieces[piece.tensor]:
                tensors[piece.tensor] = _NOTHING
                copied(piece.tensor)

    parallel.each(copy, reversed(layout.portions), threads=_threads(layout.end))
    return [_joined(one) for one in parts]


class _Recall:
    """What is known of pieces of a file, for those that are to be written there again.

    Few rows of a large table change from version to version. Where they lie together, most of an earlier version's file
    is what it should be already. To see that by digests, of which the file's own is known from the second time on,
    half as many bytes are read as to compare them.
    """

    def __init__(self, file: DataFile) -> None:
        self._content = file.content
        self._before = file.take_known()
        self._now = file.known
        self._digests = Digests()
        self._lost = 0

    def known(self, start: int, source: Array, test: Test | None) -> Known | None:
        """That of these bytes, if they are in the file, at their place."""
        size = len(source)
        known = self._before.get((start, size, test))
        target = self._content[start : start + size]
        if known is None or self._lost > _LOST or not memory.equal(target, source, 0, _GLANCE):
            return None
        known.digest = known.digest or self._digests.of(target)
        same = known.digest == self._digests.of(source)
        self._lost += -1 if same else 1
        return known if same else None

    def note(self, start: int, size: int, test: Test | None, known: Known) -> None:
        if size >= _WORTH:
            self._now[start, size, test] = known


def same(pairs: Sequence[tuple[Array, Array]]) -> list[bool]:
    """Whether the two buffers of each pair, which are equally long, have the same bytes."""
    found = [memory.equal(one, other, 0, min(_GLANCE, len(one))) for one, other in pairs]
    left = [at for at, (one, _) in enumerate(pairs) if found[at] and len(one) > _GLANCE]

    def compare(portion: tuple[placement.Piece, ...]) -> None:
        for piece in portion:
            at = left[piece.tensor]
            if found[at] and not memory.equal(*pairs[at], piece.start, piece.stop):
                found[at] = False

    sizes = [len(pairs[at][0]) for at in left]
    parallel.each(compare, placement.portions(sizes), threads=_threads(sum(sizes)))
    return found


def _threads(size: int) -> int:
    return min(parallel.THREADS, 1 + size // _SHARE)


def _joined(parts: list[tuple[int, int, Finding]]) -> Finding:
    checksum = 0
    for start, stop, part in sorted(parts):
        checksum = combine(checksum, part.checksum, stop - start) if start else part.checksum
    return Finding(checksum, all(part.sound for _, _, part in parts))
