"""Where in the data files tensors are, and the stretches that those side by side make up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paramsync.tensorbundle.index import Entry

Place = tuple[int, int, int, int]  # shard, offset, size, dtype
Stretch = tuple[int, int, int]  # shard, start, stop

_GAP = 1 << 12  # fewer bytes are between two tensors side by side, which begin where memory is aligned: no page is


def place(piece: Entry) -> Place:
    return piece.shard, piece.offset, piece.size, piece.dtype


def stretches(pieces: Iterable[Entry]) -> Iterator[Stretch]:
    """Parts of files that have all of these, in ascending order; those side by side are in one."""
    stretch: Stretch | None = None
    for shard, offset, size, _ in sorted({place(piece) for piece in pieces}):
        if stretch is None or shard != stretch[0] or offset >= stretch[2] + _GAP:
            if stretch is not None:
                yield stretch
            stretch = shard, offset, offset + size
        else:
            stretch = shard, stretch[1], max(stretch[2], offset + size)
    if stretch is not None:
        yield stretch
