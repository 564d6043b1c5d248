"""Names and joins the parts of partitioned variables.

A partitioned variable has an entry of its own, with the shape of the whole and the place of each part in it. Each part
has another entry, whose key is made of the variable's name and that place, so that all keys sort:

    00 | name, 00 as 00 FF and FF as FF 00 | 00 01 | rank | for each dimension: start, length

The rank is a count of bytes, in a byte, and these bytes. Start and length have as many bytes as leading ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from paramsync.dtypes import Array

Extent = tuple[int, int]
"""The start and the length of a part in one dimension; a length of -1 is all of the dimension."""

WHOLE: Extent = (0, -1)


def key(name: str, extents: Sequence[Extent]) -> bytes:
    """The key of a part."""
    escaped = name.encode().replace(b"\0", b"\0\xff")  # FF would be escaped too, and UTF-8 has none
    rank = len(extents)
    counted = bytes([1, rank]) if rank else b"\0"
    return b"\0" + escaped + b"\0\1" + counted + b"".join(_signed(one) for extent in extents for one in extent)


def problem(shape: Sequence[int], parts: Sequence[Sequence[Extent]]) -> str | None:
    """What is wrong with these parts of a shape, which partitioners cut along a grid; None where they make it up."""
    cuts: list[set[Extent]] = [set() for _ in shape]
    for part in parts:
        if len(part) != len(shape):
            return f"{len(part)} extents for {len(shape)} dimensions"
        for (start, length), size, cut in zip(part, shape, cuts, strict=True):
            if (start, length) != WHOLE and not 0 <= start < start + length <= size:
                return f"extent {start}, {length} in a dimension of {size}"
            cut.add((start, size if length == -1 else length))
    for size, cut in zip(shape, cuts, strict=True):
        end = 0
        for start, length in sorted(cut):
            if start != end:
                return f"parts that meet neither at {start} nor at {end}"
            end += length
        if end != size:
            return f"parts of {end} of {size}"
    expected = np.prod([len(cut) for cut in cuts], dtype=object)
    if len(parts) != expected or len({tuple(part) for part in parts}) != expected:
        return f"{len(parts)} of {expected} different parts"
    return None


def assemble(
    shape: tuple[int, ...], dtype: np.dtype[np.generic], parts: Iterable[tuple[Sequence[int], Array]]
) -> Array:
    """Join parts, each given with its start, to one array of this shape, which they make up."""
    whole = np.empty(shape, dtype)
    for starts, part in parts:
        whole[tuple(slice(start, start + size) for start, size in zip(starts, part.shape, strict=True))] = part
    return whole


def _signed(value: int) -> bytes:
    if value < 0:
        return b"\x7f"  # -1, the only one there is
    size = value.bit_length() // 7 + 1
    return ((1 << size) - 1 << 7 * size | value).to_bytes(size, "big")
