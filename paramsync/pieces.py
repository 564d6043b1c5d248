"""Copies tensors into a data file, and compares them with what is in one, at the speed of memory."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from paramsync import memory, parallel, plan
from paramsync.checksums import combine, crc32c
from paramsync.dtypes import Array
from paramsync.examine import DType, Finding, soundness
from paramsync.spares import DataFile

_SHARE = 4 << 20  # bytes that are worth one more thread, which has to start, and takes turns with the others
_GLANCE = 1 << 12  # bytes that tell most tensors that changed from those that did not
_NOTHING = np.empty(0, np.uint8)


def write(
    file: DataFile,
    layout: plan.Layout,
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
    tests = [None if one is None else soundness(one) for one in dtypes]
    parts: list[list[tuple[int, int, Finding]]] = [[] for _ in tensors]  # start, stop, what is between
    pieces = Counter(piece.tensor for portion in layout.portions for piece in portion)
    done = [itertools.count(1) for _ in tensors]  # asked for the next number, each gives it to one thread only

    def copy(portion: tuple[plan.Piece, ...]) -> None:
        first, last = portion[0], portion[-1]
        file.touch(layout.offsets[first.tensor] + first.start, layout.offsets[last.tensor] + last.stop)
        for piece in portion:
            start = layout.offsets[piece.tensor] + piece.start
            file.put(start, tensors[piece.tensor][piece.start : piece.stop])
            target = content[start : start + piece.stop - piece.start].data  # still in the cache
            test = tests[piece.tensor]
            finding = Finding(crc32c(target), not target or test is None or test(target))
            parts[piece.tensor].append((piece.start, piece.stop, finding))
            if next(done[piece.tensor]) == pieces[piece.tensor]:
                tensors[piece.tensor] = _NOTHING
                copied(piece.tensor)

    parallel.each(copy, reversed(layout.portions), threads=_threads(layout.end))
    return [_joined(one) for one in parts]


def same(pairs: Sequence[tuple[Array, Array]]) -> list[bool]:
    """Whether the two buffers of each pair, which are equally long, have the same bytes."""
    found = [memory.equal(one, other, 0, min(_GLANCE, len(one))) for one, other in pairs]
    left = [at for at, (one, _) in enumerate(pairs) if found[at] and len(one) > _GLANCE]

    def compare(portion: tuple[plan.Piece, ...]) -> None:
        for piece in portion:
            at = left[piece.tensor]
            if found[at] and not memory.equal(*pairs[at], piece.start, piece.stop):
                found[at] = False

    sizes = [len(pairs[at][0]) for at in left]
    parallel.each(compare, plan.portions(sizes), threads=_threads(sum(sizes)))
    return found


def _threads(size: int) -> int:
    return min(parallel.THREADS, 1 + size // _SHARE)


def _joined(parts: list[tuple[int, int, Finding]]) -> Finding:
    checksum = 0
    for start, stop, part in sorted(parts):
        checksum = combine(checksum, part.checksum, stop - start) if start else part.checksum
    return Finding(checksum, all(part.sound for _, _, part in parts))
