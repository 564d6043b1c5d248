"""Deltas: the changed elements of an array as compressed differences, lossless. Arrays in, bytes out.

A delta of a block has one of four forms, whichever suits the share of changed elements:

SAME    nothing
SPARSE  the number of changed elements in each run of 65,536; the gaps between their positions; their differences
DENSE   the differences of all elements
RAW     the new elements, if DENSE would not be smaller

An element counts as the unsigned integer of its bits, and differences wrap around: where a weight crosses zero, the
difference of its bits overflows. Small differences of either sign become small numbers by zig-zag coding. A gap is the
difference of the low 16 bits of two neighbouring positions and wraps around, too: the counts of the runs give the high
bits back. Gaps and differences are split into planes of their bytes, which zstd compresses further.

A delta says nothing about the array that it was made from: the caller checks the result by its checksum.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias, cast

import cramjam
import numpy as np

Unsigned: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger[Any]]]

BLOCK = 4 << 20  # bytes of a block, so that its temporary arrays stay in the processor's cache

SAME, SPARSE, DENSE, RAW = range(4)

_RUN = 16  # bits of a position within a run
_DENSE = 4  # one changed element in so many makes a block dense: gathering them would take longer than a pass
_LEVEL = 1  # of zstd: higher levels save a few percent for several times the time
_HEAD = struct.Struct("<BII")  # form, bytes of the gaps, bytes of the differences


def encode(old: Unsigned, new: Unsigned) -> bytes:
    """The delta from `old` to `new`, blocks of the same size and unsigned dtype."""
    changed = np.flatnonzero(old != new)
    if not len(changed):
        return _HEAD.pack(SAME, 0, 0)
    if len(changed) * _DENSE > len(new):
        packed = _pack(_zigzag(new - old))
        return _HEAD.pack(DENSE, 0, len(packed)) + packed if len(packed) < new.nbytes else _raw(new)
    starts = np.arange(0, len(new) + (1 << _RUN), 1 << _RUN)
    counts = np.diff(np.searchsorted(changed, starts)).astype("<u4")
    low = changed.astype(np.uint16)
    gaps = _pack(np.subtract(low, np.concatenate(([np.uint16(0)], low[:-1]))))
    differences = _pack(_zigzag(new[changed] - old[changed]))
    return b"".join((_HEAD.pack(SPARSE, len(gaps), len(differences)), counts.tobytes(), gaps, differences))


def apply(delta: memoryview, target: Unsigned) -> None:
    """Turn `target`, which has the old elements, into the new ones.

    Raises ValueError for a delta that does not fit this block; the target is then of no use any more.
    """
    if len(delta) < _HEAD.size:
        raise ValueError(f"expected a delta of at least {_HEAD.size} bytes, found {len(delta)}")
    form, gaps, differences = _HEAD.unpack_from(delta)
    body = delta[_HEAD.size :]
    counts = 4 * -(-len(target) >> _RUN) if form == SPARSE else 0
    if form > RAW or len(body) != counts + gaps + differences or (gaps and form != SPARSE):
        raise ValueError(f"expected {counts + gaps + differences} bytes of form {form}, found {len(body)}")
    if form == RAW:
        if differences != target.nbytes:
            raise ValueError(f"expected {target.nbytes} bytes, found {differences}")
        target[:] = np.frombuffer(body, target.dtype)
    elif form == DENSE:
        target += _unzigzag(_unpack(body, len(target), target.dtype))
    elif form == SPARSE:
        changed = _positions(np.frombuffer(body[:counts], "<u4"), body[counts : counts + gaps], len(target))
        target[changed] += _unzigzag(_unpack(body[counts + gaps :], len(changed), target.dtype))


def _raw(new: Unsigned) -> bytes:
    return _HEAD.pack(RAW, 0, new.nbytes) + new.tobytes()


def _positions(counts: Unsigned, gaps: memoryview, size: int) -> Unsigned:
    """The positions of the changed elements, ascending. Raises ValueError for positions outside a block of `size`."""
    total = int(counts.sum(dtype=np.int64))
    if total > size:
        raise ValueError(f"expected at most {size} changed elements, found {total}")
    low = np.cumsum(_unpack(gaps, total, np.dtype(np.uint16)), dtype=np.uint16)
    positions = np.repeat(np.arange(len(counts)) << _RUN, counts)
    positions |= low
    if total and (positions[-1] >= size or (np.diff(positions) <= 0).any()):
        raise ValueError(f"expected ascending positions below {size}, found others")
    return positions


def _zigzag(differences: Unsigned) -> Unsigned:
    """Small differences of either sign as small unsigned numbers."""
    bits = 8 * differences.itemsize
    sign = (differences.view(f"i{differences.itemsize}") >> (bits - 1)).view(differences.dtype)
    return cast(Unsigned, np.left_shift(differences, 1, out=differences) ^ sign)


def _unzigzag(numbers: Unsigned) -> Unsigned:
    return cast(Unsigned, (numbers >> 1) ^ -(numbers & 1))


def _pack(numbers: Unsigned) -> bytes:
    planes = np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, numbers.itemsize).T)
    return bytes(cramjam.zstd.compress(planes.reshape(-1).data, _LEVEL))


def _unpack(packed: memoryview, count: int, dtype: np.dtype[np.unsignedinteger[Any]]) -> Unsigned:
    """These numbers. Raises ValueError unless there are `count`; writes no more memory than they take."""
    planes = np.empty(count * dtype.itemsize, np.uint8)
    try:
        size = cramjam.zstd.decompress_into(packed, planes.data)
    except cramjam.DecompressionError as error:
        raise ValueError(f"expected {count} numbers: {error}") from error
    if size != planes.nbytes:
        raise ValueError(f"expected {planes.nbytes} bytes, found {size}")
    return np.ascontiguousarray(planes.reshape(dtype.itemsize, -1).T).view(dtype).reshape(-1)
