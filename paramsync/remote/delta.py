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

BLOCK = 4 << 20  # bytes of a block

SAME, SPARSE, DENSE, RAW = range(4)

_RUN = 16  # bits of a position within a run
_CHUNK = 4 << _RUN  # elements that are compared at once: they stay in a cache until their differences are taken
_DENSE = 2  # a block is dense if more than one element in so many changed: gathering them would take longer
_LEVEL = 1  # of zstd: higher levels save a few percent for several times the time
_HEAD = struct.Struct("<BBII")  # form, low bytes of differences that are left out, bytes of gaps, of differences
_FEW = 10  # one changed element in so many, or more: numpy finds them without a branch for each


def encode(old: Unsigned, new: Unsigned) -> bytes:
    """The delta from `old` to `new`, blocks of the same size and unsigned dtype."""
    counts: list[int] = []
    gaps, differences = [], []
    is_sparse = False
    for start in range(0, len(new), _CHUNK):
        before, after = old[start : start + _CHUNK], new[start : start + _CHUNK]
        differs = before != after
        runs = [int(np.count_nonzero(differs[at : at + (1 << _RUN)])) for at in range(0, len(differs), 1 << _RUN)]
        counts += runs
        if not (count := sum(runs)):
            continue
        if count * _DENSE > len(after) and not is_sparse:
            if np.count_nonzero(old != new) * _DENSE > len(new):
                shift, packed = _pack_differences(new - old)
                return _HEAD.pack(DENSE, shift, 0, len(packed)) + packed if len(packed) < new.nbytes else _raw(new)
            is_sparse = True
        changed = _places(differs, count)
        gaps.append(changed.astype(np.uint16))
        difference = after.take(changed)
        difference -= before.take(changed)
        differences.append(difference)
    if not gaps:
        return _HEAD.pack(SAME, 0, 0, 0)
    gap = np.concatenate(gaps)
    gap[1:] -= gap[:-1].copy()
    packed_gaps = _pack(gap)
    shift, packed = _pack_differences(np.concatenate(differences))
    head = _HEAD.pack(SPARSE, shift, len(packed_gaps), len(packed))
    return b"".join((head, np.array(counts, "<u4").tobytes(), packed_gaps, packed))


def apply(delta: memoryview, source: Unsigned, target: Unsigned) -> None:
    """Write the new elements into `target`, from the old elements in `source`, which may be `target` itself.

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
    if form == SAME:
        _copy(source, target)
    elif form == RAW:
        if differences != target.nbytes:
            raise ValueError(f"expected {target.nbytes} bytes, found {differences}")
        target[:] = np.frombuffer(body, target.dtype)
    elif form == DENSE:
        np.add(source, _unpack_differences(body, len(target), target.dtype, shift), out=target)
    else:
        runs = np.frombuffer(body[:counts], "<u4")
        if (total := int(runs.sum(dtype=np.int64))) > len(target):
            raise ValueError(f"expected at most {len(target)} changed elements, found {total}")
        changed = np.cumsum(_unpack(body[counts : counts + gaps], total, np.dtype(np.uint16)), dtype=np.intp)
        changed &= (1 << _RUN) - 1
        numbers = _unpack_differences(body[counts + gaps :], total, target.dtype, shift)
        end = 0
        for run, count in enumerate(runs.tolist()):
            part = slice(run << _RUN, (run + 1) << _RUN)
            _copy(source[part], target[part])
            _add(target[part], changed[end : end + count], numbers[end : end + count])  # while the run is in the cache
            end += count


def _copy(source: Unsigned, target: Unsigned) -> None:
    if source.ctypes.data != target.ctypes.data:
        np.copyto(target, source)


def _add(target: Unsigned, places: Positions, numbers: Unsigned) -> None:
    try:
        np.add.at(target, places, numbers)
    except IndexError as error:
        raise ValueError(f"expected positions below {len(target)}: {error}") from error


def _raw(new: Unsigned) -> bytes:
    return _HEAD.pack(RAW, 0, 0, new.nbytes) + new.tobytes()


def _places(differs: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], count: int) -> Positions:
    """The positions of the elements that are true, at most `count`, ascending."""
    if count * _FEW > len(differs) or len(differs) % 8:
        return np.flatnonzero(differs)
    eights = differs.view(np.uint64)
    some = _places(eights != 0, count)
    within = np.flatnonzero(eights.take(some).view(np.bool_))
    places: Positions = (some << 3).take(within >> 3)
    within &= 7
    places |= within
    return places


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
    numbers = planes[:count].astype(dtype) if size else np.zeros(count, dtype)
    for at in range(count, size, max(count, 1)):
        plane = planes[at : at + count].astype(dtype)
        plane <<= 8 * (at // count)
        numbers |= plane
    return numbers
