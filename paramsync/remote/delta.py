"""Deltas: the changed elements of an array as compressed differences, lossless. Arrays in, bytes out.

A delta of a block has one of four forms, whichever suits the share of changed elements:

SAME    nothing
SPARSE  the number of changed elements in each run of 65,536; the gaps between their positions; their differences
DENSE   the differences of all elements
RAW     the new elements, if DENSE would not be smaller

An element counts as the unsigned integer of its bits, and differences wrap around: where a weight crosses zero, the
difference of its bits overflows. Low bytes that are zero in all differences, as after rounding to bfloat16, are left
out. Small differences of either sign become small numbers by zig-zag coding. A gap is the difference of the low 16 bits
of two neighbouring positions and wraps around, too: the counts of the runs give the high bits back. Gaps and
differences are split into planes of their bytes, from the lowest to the highest that is not zero, which zstd compresses
further.

A delta says nothing about the array that it was made from: the caller checks the result by its checksum.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import cramjam
import numpy as np

Unsigned: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger[Any]]]
Positions: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.signedinteger[Any]]]

BLOCK = 4 << 20  # bytes of a block, so that its temporary arrays stay in the processor's cache

SAME, SPARSE, DENSE, RAW = range(4)

_RUN = 16  # bits of a position within a run
_DENSE = 2  # a block is dense if more than one element in so many changed: gathering them would take longer
_LEVEL = 1  # of zstd: higher levels save a few percent for several times the time
_HEAD = struct.Struct("<BBII")  # form, low bytes of differences that are left out, bytes of gaps, of differences
_FEW = 10  # one changed element in so many, or more: numpy finds them without a branch for each


def encode(old: Unsigned, new: Unsigned) -> bytes:
    """The delta from `old` to `new`, blocks of the same size and unsigned dtype."""
    differs = old != new
    count = int(np.count_nonzero(differs))
    if not count:
        return _HEAD.pack(SAME, 0, 0, 0)
    if count * _DENSE > len(new):
        shift, packed = _pack_differences(new - old)
        return _HEAD.pack(DENSE, shift, 0, len(packed)) + packed if len(packed) < new.nbytes else _raw(new)
    changed = _places(differs, count)
    starts = np.arange(0, len(new) + (1 << _RUN), 1 << _RUN)
    counts = np.diff(np.searchsorted(changed, starts)).astype("<u4")
    gaps = changed.astype(np.uint16)
    gaps[1:] -= gaps[:-1].copy()
    differences = new.take(changed)
    differences -= old.take(changed)
    packed_gaps = _pack(gaps)
    shift, packed = _pack_differences(differences)
    head = _HEAD.pack(SPARSE, shift, len(packed_gaps), len(packed))
    return b"".join((head, counts.tobytes(), packed_gaps, packed))


def apply(delta: memoryview, target: Unsigned) -> None:
    """Turn `target`, which has the old elements, into the new ones.

    Raises ValueError for a delta that does not fit this block; the target is then of no use any more.
    """
    if len(delta) < _HEAD.size:
        raise ValueError(f"expected a delta of at least {_HEAD.size} bytes, found {len(delta)}")
    form, shift, gaps, differences = _HEAD.unpack_from(delta)
    body = delta[_HEAD.size :]
    counts = 4 * -(-len(target) >> _RUN) if form == SPARSE else 0
    if (
        form > RAW
        or len(body) != counts + gaps + differences
        or (gaps and form != SPARSE)
        or shift >= (1 if form in (SAME, RAW) else target.itemsize)
    ):
        raise ValueError(f"expected {counts + gaps + differences} bytes of form {form}, found {len(body)}")
    if form == RAW:
        if differences != target.nbytes:
            raise ValueError(f"expected {target.nbytes} bytes, found {differences}")
        target[:] = np.frombuffer(body, target.dtype)
    elif form == DENSE:
        target += _unpack_differences(body, len(target), target.dtype, shift)
    elif form == SPARSE:
        changed = _positions(np.frombuffer(body[:counts], "<u4"), body[counts : counts + gaps], len(target))
        target[changed] += _unpack_differences(body[counts + gaps :], len(changed), target.dtype, shift)


def _raw(new: Unsigned) -> bytes:
    return _HEAD.pack(RAW, 0, 0, new.nbytes) + new.tobytes()


def _places(differs: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], count: int) -> Positions:
    """The positions of the `count` elements that are true, ascending."""
    if count * _FEW > len(differs) or len(differs) % 8:
        return np.flatnonzero(differs)
    eights = differs.view(np.uint64)
    some = np.flatnonzero(eights != 0)
    within = np.flatnonzero(eights.take(some).view(np.bool_))
    places: Positions = (some << 3).take(within >> 3)
    within &= 7
    places |= within
    return places


def _positions(counts: Unsigned, gaps: memoryview, size: int) -> Positions:
    """The positions of the changed elements, ascending. Raises ValueError for positions outside a block of `size`."""
    total = int(counts.sum(dtype=np.int64))
    if total > size:
        raise ValueError(f"expected at most {size} changed elements, found {total}")
    positions: Positions = np.cumsum(_unpack(gaps, total, np.dtype(np.uint16)), dtype=np.int64)
    positions &= (1 << _RUN) - 1
    positions |= np.repeat(np.arange(len(counts)) << _RUN, counts)
    if total and (positions[-1] >= size or (positions[1:] <= positions[:-1]).any()):
        raise ValueError(f"expected ascending positions below {size}, found others")
    return positions


def _pack_differences(differences: Unsigned) -> tuple[int, bytes]:
    """How many low bytes are zero in all differences, and the others packed. Overwrites the differences."""
    bits = 8 * differences.itemsize
    used = int(np.bitwise_or.reduce(differences))
    shift = (max(used & -used, 1).bit_length() - 1) // 8
    signed = differences.view(f"i{differences.itemsize}")
    sign = (signed >> (bits - 1)).view(differences.dtype)
    if shift:
        signed >>= 8 * shift
    differences <<= 1
    differences ^= sign
    return shift, _pack(differences)


def _unpack_differences(
    packed: memoryview, count: int, dtype: np.dtype[np.unsignedinteger[Any]], shift: int
) -> Unsigned:
    numbers = _unpack(packed, count, dtype)
    negative = numbers & 1
    numbers >>= 1
    numbers ^= np.negative(negative, out=negative)
    if shift:
        numbers <<= 8 * shift
    return numbers


def _pack(numbers: Unsigned) -> bytes:
    used = -(-int(numbers.max()).bit_length() // 8)
    planes = np.empty((used, len(numbers)), np.uint8)
    for at, plane in enumerate(planes):
        np.copyto(plane, numbers >> 8 * at if at else numbers, casting="unsafe")
    return bytes(cramjam.zstd.compress(planes.reshape(-1).data, _LEVEL))


def _unpack(packed: memoryview, count: int, dtype: np.dtype[np.unsignedinteger[Any]]) -> Unsigned:
    """These numbers. Raises ValueError unless there are `count`; writes no more memory than they take."""
    planes = np.empty(count * dtype.itemsize, np.uint8)
    try:
        size = cramjam.zstd.decompress_into(packed, planes.data)
    except cramjam.DecompressionError as error:
        raise ValueError(f"expected {count} numbers: {error}") from error
    if size % max(count, 1):
        raise ValueError(f"expected planes of {count} bytes, found {size}")
    numbers = np.zeros(count, dtype)
    for at in range(0, size, max(count, 1)):
        plane = planes[at : at + count].astype(dtype)
        plane <<= 8 * (at // count)
        numbers |= plane
    return numbers
