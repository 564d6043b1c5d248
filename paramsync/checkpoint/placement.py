"""Decides where the tensors of the next checkpoint go, and which bytes one thread takes at once. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

LINKED = 8  # data files that a checkpoint shares with the one before
PORTION = 4 << 20  # bytes that one thread copies at once: most are still in its cache then, and it seldom waits
_FEW = 32 << 20  # bytes that are copied so soon that a thread waits longer for a second turn than it saves: they are
_PORTIONS = 4  # in so many portions,
_EASY = 1 << 18  # each of a multiple of so many bytes, so that checksums are soon combined

ALIGNMENT = 64  # bytes: TensorFlow's kernels expect it of the address of a tensor
_PAGE = 4096
_STALE = 0.5  # the share of a file's bytes that may belong to no tensor any more
_WORTH = 1 << 20  # bytes that are worth a data file of their own, whatever their share,
_SHARE = 1 / 64  # and the share that is, however few bytes it is


@dataclass(frozen=True, slots=True)
class Shard:
    """A data file of the checkpoint before: the bytes of its tensors when it was written, and the names still in it."""

    bytes: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The fate of each tensor. `linked` are shards that stay as they are, with the names that stay in each.

    `moved` tensors did not change but cannot stay: they get a shard of their own, which the next checkpoint links.
    `changed` tensors get another.
    """

    linked: Mapping[int, tuple[str, ...]]
    moved: tuple[str, ...]
    changed: tuple[str, ...]


class Piece(NamedTuple):
    """Bytes from `start` to `stop` of the tensor number `tensor`."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The offsets of the tensors of a shard, its end, and portions of it that are about equally long."""

    offsets: tuple[int, ...]
    end: int
    portions: tuple[tuple[Piece, ...], ...]


def decide(sizes: Mapping[str, int], unchanged: Collection[str], shards: Sequence[Shard]) -> Plan:
    """Plan a checkpoint of tensors of these sizes; the `unchanged` ones are in `shards`.

    A shard is linked while at least half of its bytes are still of use: tensors that changed leave stale bytes behind.
    Of too many shards the smallest are put together. Tensors that are not worth a file are written with the changed.
    """
    total = sum(sizes.values())
    staying = {at: tuple([name for name in shard.names if name in unchanged]) for at, shard in enumerate(shards)}
    left = {at: sum(sizes[name] for name in names) for at, names in staying.items()}
    linked = [
        at
        for at, shard in enumerate(shards)
        if _is_worth_a_file(left[at], total) and left[at] >= shard.bytes * (1 - _STALE)
    ]
    if len(linked) > LINKED:
        linked = sorted(sorted(linked, key=lambda at: left[at])[-LINKED // 2 :])
    stay = {name for at in linked for name in staying[at]}
    moved = tuple([name for name in sizes if name in unchanged and name not in stay])
    if not _is_worth_a_file(sum(sizes[name] for name in moved), total):
        moved = ()
    stay.update(moved)
    return Plan({at: staying[at] for at in linked}, moved, tuple([name for name in sizes if name not in stay]))


@lru_cache(maxsize=8)
def arrange(sizes: tuple[int, ...]) -> Layout:
    """Lay tensors of these sizes out in one shard: one of a page or more begins on a page, others on 64 bytes."""
    offsets = []
    end = 0
    for size in sizes:
        if size:  # a place behind the end of the file would be out of bounds
            alignment = _PAGE if size >= _PAGE else ALIGNMENT
            end = -(-end // alignment) * alignment
        offsets.append(end)
        end += size
    return Layout(tuple(offsets), end, tuple(portions(sizes)))


def portions(sizes: Sequence[int], longest: int | None = None) -> Iterable[tuple[Piece, ...]]:
    """All bytes of tensors of these sizes, in portions for one thread each: many small tensors, or a part of one.

    No value of a tensor is cut: pieces begin on multiples of the alignment. An empty tensor has a piece, too.
    """
    portion: list[Piece] = []
    room = longest = longest or _longest(sum(sizes))
    for tensor, size in enumerate(sizes):
        start = 0
        while size - start > room:
            portion.append(Piece(tensor, start, start + room))
            yield tuple(portion)
            portion, start, room = [], start + room, longest
        portion.append(Piece(tensor, start, size))
        room -= -((start - size) // ALIGNMENT) * ALIGNMENT
        if not room:
            yield tuple(portion)
            portion, room = [], longest
    if portion:
        yield tuple(portion)


def _longest(total: int) -> int:
    """The bytes of a portion at most, where there are so many in total."""
    if total > _FEW:
        return PORTION
    return max(PORTION, -(-total // (_PORTIONS * _EASY)) * _EASY)


def _is_worth_a_file(size: int, total: int) -> bool:
    return size > 0 and (size >= _WORTH or size >= total * _SHARE)
