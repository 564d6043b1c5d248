"""Deltas: lossless, compressed differences between two arrays.

The delta of a block has one of four forms, depending on the share of changed elements:

SAME    nothing
SPARSE  the number of changed elements in each run of 65,536; the gaps between their positions; their differences
DENSE   the differences of all elements
RAW     the new elements, if DENSE would not be smaller

The bits of an element are read as an unsigned integer. Differences wrap around, because the difference of the bits
overflows if a weight crosses zero. Low bytes that are zero in all differences, as after rounding to bfloat16, are left
out. Zig-zag coding turns small differences of either sign into small numbers. A gap is the difference between the low
16 bits of two neighbouring positions; it wraps around, and the counts of the runs restore the high bits. Gaps and
differences are split into planes: first all lowest bytes, and so on up to the highest bytes that are not all zero. zstd
compresses the planes.

A delta does not identify the array that it was made from, so the caller must check the result by its checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import cramjam
import numpy as np

Unsigned: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger[Any]]]
Positions: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.signedinteger[Any]]]
Bytes: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

BLOCK = 4 << 20  # bytes of a block

SAME, SPARSE, DENSE, RAW = range(4)

_RUN = 1 << 16  # elements of a run: a position within it takes two bytes, and its temporary arrays fit the CPU cache
_CHUNK = 4 * _RUN  # elements that are compared at once, so that they are still in the CPU cache when subtracted
_DENSE = 2  # DENSE if more than one in so many elements changed, because gathering changed elements is slower
_LEVEL = 1  # level of zstd: higher levels take several times as long and save a few percent
_HEAD = struct.Struct("<BBII")  # form, number of low bytes left out, bytes of packed gaps, bytes of packed differences
_FEW = 10  # if fewer than one in so many elements changed, `_places` skips groups of eight unchanged elements


def encode(old: Unsigned, new: Unsigned) -> bytes:
    """Return the delta from `old` to `new`: two blocks of the same size and unsigned dtype."""
    counts: list[int] = []
    gaps, differences = [], []
    last = 0  # position of the last changed element
    is_sparse = False
    for start in range(0, len(new), _CHUNK):
        before, after = old[start : start + _CHUNK], new[start : start + _CHUNK]
        differs = before != after
        runs = [int(np.count_nonzero(differs[at : at + _RUN])) for at in range(0, len(differs), _RUN)]
        counts += runs
        if not (count := sum(runs)):
            continue
        if count * _DENSE > len(after) and not is_sparse:
            if np.count_nonzero(old != new) * _DENSE > len(new):
                dense = _dense(old, new)
                return dense if len(dense) < _HEAD.size + new.nbytes else _raw(new)
            is_sparse = True
        changed = _places(differs, count)
        gap = changed.astype(np.uint16)
        gap[1:] -= gap[:-1].copy()
        gap[:1] -= np.uint16(last % _RUN)
        last = int(changed[-1])
        gaps.append(gap)
        difference = after.take(changed)
        difference -= before.take(changed)
        differences.append(difference)
    if not gaps:
        return _HEAD.pack(SAME, 0, 0, 0)
    packed_gaps = _pack(gaps)
    shift, packed = _pack_differences(differences)
    head = _HEAD.pack(SPARSE, shift, len(packed_gaps), len(packed))
    return b"".join((head, np.array(counts, "<u4").tobytes(), packed_gaps, packed))


def _dense(old: Unsigned, new: Unsigned) -> bytes:
    shift, packed = _pack_differences([new[at : at + _RUN] - old[at : at + _RUN] for at in range(0, len(new), _RUN)])
    return _HEAD.pack(DENSE, shift, 0, len(packed)) + packed


def _raw(new: Unsigned) -> bytes:
    return _HEAD.pack(RAW, 0, 0, new.nbytes) + new.tobytes()


def add(deltas: Sequence[memoryview], count: int, dtype: np.dtype[np.unsignedinteger[Any]]) -> bytes:
    """Return one delta with the effect of applying these deltas of a block of `count` elements in order."""
    total = np.zeros(count, dtype)  # the sum of the differences, or the new elements once a delta was RAW
    for delta in deltas:
        apply(delta, total, total)
    if any(delta[0] == RAW for delta in deltas):
        return _raw(total)
    zeros = np.zeros(count, dtype)
    added = encode(zeros, total)
    return added if added[0] != RAW else _dense(zeros, total)  # RAW would store the sums as if they were elements


def apply(delta: memoryview, source: Unsigned, target: Unsigned) -> None:
    """Apply a delta to the old elements in `source` and write the new elements into `target`.

    Both may be the same array. Raises ValueError for a delta that does not fit; `target` is then undefined.
    """
    if len(delta) < _HEAD.size:
        raise ValueError(f"expected a delta of at least {_HEAD.size} bytes, found {len(delta)}")
    form, shift, gaps, differences = _HEAD.unpack_from(delta)
    body = delta[_HEAD.size :]
    counts = 4 * -(-len(target) // _RUN) if form == SPARSE else 0
    if (
        form > RAW
        or len(body) != counts + gaps + differences
        or (gaps and form != SPARSE)
        or shift >= (1 if form in (SAME, RAW) else target.itemsize)
    ):
        raise ValueError(f"expected {counts + gaps + differences} bytes of form {form}, found {len(body)}")
    is_copied = source.ctypes.data != target.ctypes.data
    if form == SAME:
        if is_copied:
            np.copyto(target, source)
    elif form == RAW:
        if differences != target.nbytes:
            raise ValueError(f"expected {target.nbytes} bytes, found {differences}")
        target[:] = np.frombuffer(body, target.dtype)
    elif form == DENSE:
        planes = _unpack(body, len(target), target.itemsize)
        for at in range(0, len(target), _RUN):
            part = slice(at, at + _RUN)
            np.add(source[part], _differences(planes[:, part], target.dtype, shift), out=target[part])
    else:
        runs = np.frombuffer(body[:counts], "<u4")
        if (total := int(runs.sum(dtype=np.int64))) > len(target):
            raise ValueError(f"expected at most {len(target)} changed elements, found {total}")
        gap_planes = _unpack(body[counts : counts + gaps], total, 2)
        places = np.cumsum(_numbers(gap_planes, np.dtype(np.uint16)), dtype=np.intp)
        places &= _RUN - 1
        numbers = _differences(_unpack(body[counts + gaps :], total, target.itemsize), target.dtype, shift)
        end = 0
        for run, count in enumerate(runs.tolist()):
            part = slice(run * _RUN, (run + 1) * _RUN)
            if is_copied:
                np.copyto(target[part], source[part])
            _add(target[part], places[end : end + count], numbers[end : end + count])  # the run is still in the cache
            end += count


def _add(target: Unsigned, places: Positions, numbers: Unsigned) -> None:
    try:
        np.add.at(target, places, numbers)
    except IndexError as error:
        raise ValueError(f"expected positions below {len(target)}: {error}") from error


def _places(differs: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], count: int) -> Positions:
    """Return the positions of true elements in ascending order. `count` is how many there are at most."""
    if count * _FEW > len(differs) or len(differs) % 8:
        return np.flatnonzero(differs)
    eights = differs.view(np.uint64)
    some = _places(eights != 0, count)
    within = np.flatnonzero(eights.take(some).view(np.bool_))
    places: Positions = (some << 3).take(within >> 3)
    within &= 7
    places |= within
    return places


def _pack_differences(pieces: Sequence[Unsigned]) -> tuple[int, bytes]:
    """Return how many low bytes are zero in all differences, and the other bytes packed. Overwrites the pieces."""
    bits = 8 * pieces[0].itemsize
    used = 0
    for piece in pieces:
        used |= int(np.bitwise_or.reduce(piece))
    shift = (max(used & -used, 1).bit_length() - 1) // 8
    for piece in pieces:
        signed = piece.view(f"i{piece.itemsize}")
        sign = (signed >> (bits - 1)).view(piece.dtype)
        if shift:
            signed >>= 8 * shift
        np.left_shift(piece, 1, out=piece)
        np.bitwise_xor(piece, sign, out=piece)
    return shift, _pack(pieces)


def _differences(planes: Bytes, dtype: np.dtype[np.unsignedinteger[Any]], shift: int) -> Unsigned:
    numbers = _numbers(planes, dtype)
    negative = numbers & 1
    numbers >>= 1
    numbers ^= np.negative(negative, out=negative)
    if shift:
        numbers <<= 8 * shift
    return numbers


def _pack(pieces: Sequence[Unsigned]) -> bytes:
    """Compress the byte planes of these numbers: all lowest bytes first."""
    used = -(-max(int(piece.max()) for piece in pieces).bit_length() // 8)
    planes = np.empty((used, sum(map(len, pieces))), np.uint8)
    end = 0
    for piece in pieces:
        for at, plane in enumerate(planes):
            np.copyto(plane[end : end + len(piece)], piece >> 8 * at if at else piece, casting="unsafe")
        end += len(piece)
    return bytes(cramjam.zstd.compress(planes.reshape(-1).data, _LEVEL))


def _unpack(packed: memoryview, count: int, most: int) -> Bytes:
    """Decompress at most `most` byte planes of `count` numbers. Raises ValueError if the bytes do not fit."""
    planes = np.empty(count * most, np.uint8)
    try:
        size = cramjam.zstd.decompress_into(packed, planes.data)
    except cramjam.DecompressionError as error:
        raise ValueError(f"expected {count} numbers: {error}") from error
    if size % max(count, 1):
        raise ValueError(f"expected planes of {count} bytes, found {size}")
    return planes[:size].reshape(-1, count) if count else planes.reshape(1, 0)


def _numbers(planes: Bytes, dtype: np.dtype[np.unsignedinteger[Any]]) -> Unsigned:
    numbers = planes[0].astype(dtype) if len(planes) else np.zeros(planes.shape[1], dtype)
    for at in range(1, len(planes)):
        plane = planes[at].astype(dtype)
        plane <<= 8 * at
        numbers |= plane
    return numbers
