"""Copies tensors into a data file, and compares them with what is in one, at the speed of memory."""

from __future__ import annotations

from collections.abc import Sequence

from paramsync import memory, parallel, plan
from paramsync.checksums import combine, crc32c
from paramsync.dtypes import Array
from paramsync.spares import DataFile

_SHARE = 4 << 20  # bytes that are worth one more thread, which has to start, and takes turns with the others
_GLANCE = 1 << 12  # bytes that tell most tensors that changed from those that did not


def write(file: DataFile, layout: plan.Layout, tensors: Sequence[Array]) -> list[int]:
    """Copy the bytes of tensors to their places; returns their checksums, which are of what is in the file."""
    content = file.content
    parts: list[list[tuple[int, int, int]]] = [[] for _ in tensors]  # start, stop, checksum

    def copy(portion: tuple[plan.Piece, ...]) -> None:
        first, last = portion[0], portion[-1]
        file.touch(layout.offsets[first.tensor] + first.start, layout.offsets[last.tensor] + last.stop)
        for piece in portion:
            source = tensors[piece.tensor][piece.start : piece.stop]
            start = layout.offsets[piece.tensor] + piece.start
            file.put(start, source)
            target = content[start : start + len(source)]
            parts[piece.tensor].append((piece.start, piece.stop, crc32c(target.data)))  # still in the cache

    parallel.each(copy, layout.portions, threads=_threads(layout.end))
    return [_combined(one) for one in parts]


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


def _combined(parts: list[tuple[int, int, int]]) -> int:
    checksum = 0
    for start, stop, part in sorted(parts):
        checksum = combine(checksum, part, stop - start) if start else part
    return checksum
