"""Computes checksums of memory, and looks whether its values may be served, in one pass on several threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import ml_dtypes
import numpy as np

from paramsync.checkpoint.placement import Piece, portions
from paramsync.host.parallel import THREADS, each
from paramsync.tensorbundle.checksums import combine, crc32c

_PORTION = 8 << 20  # bytes that a thread takes at once: few enough for all threads to end together
_CHUNK = 2 << 20  # bytes that are still in a cache after the checksum, when their values are looked at
_FEW = 2 << 20  # bytes that one thread has seen by the time that others would have started
_SMALL = 1 << 20  # bytes of a region, on average, below which threads wait for the GIL more than they read

DType = np.dtype[np.generic]


@dataclass(frozen=True, slots=True)
class Region:
    """The memory of a tensor, and the dtype of its values, None where they do not matter.

    `check` is called with offset and size of the bytes that are read next; an error that it raises ends the work.
    """

    memory: memoryview
    dtype: DType | None = None
    check: Callable[[int, int], None] | None = None


class Finding(NamedTuple):
    """The checksum, not masked, and whether the values are sound: no NaN, no infinity, no bool but 0 and 1."""

    checksum: int
    sound: bool


Test = Callable[[memoryview], bool]
"""Tells whether all values in some memory, which is not empty, are sound."""


def examine(regions: Sequence[Region], *, threads: int = THREADS) -> list[Finding]:
    """A finding for each region, from one pass over the memory of all."""
    tests = [None if region.dtype is None else soundness(region.dtype) for region in regions]
    found: list[list[tuple[int, int, Finding]]] = [[] for _ in regions]

    def work(portion: tuple[Piece, ...]) -> None:
        for number, start, stop in portion:
            region = regions[number]
            if region.check is not None:
                region.check(start, stop - start)
            found[number].append((start, stop, _look(region.memory[start:stop], tests[number])))

    sizes = [len(region.memory) for region in regions]
    each(work, portions(sizes, _PORTION), threads=min(threads, _useful_threads(sizes)))
    return [joined(parts) for parts in found]


def joined(parts: Sequence[tuple[int, int, Finding]]) -> Finding:
    """The finding of a tensor from those of its pieces, each with its start and stop."""
    if len(parts) == 1:
        return parts[0][2]
    checksum, sound = 0, True
    for start, stop, part in sorted(parts):
        checksum = combine(checksum, part.checksum, stop - start) if start else part.checksum
        sound = sound and part.sound
    return Finding(checksum, sound)


def _useful_threads(sizes: Sequence[int]) -> int:
    if sum(sizes) < _FEW:
        return 1
    return THREADS if sum(sizes) >= _SMALL * len(sizes) else 2


def _look(memory: memoryview, test: Test | None) -> Finding:
    if test is None or not memory:
        return Finding(crc32c(memory), True)  # in one go: threads that serve want the GIL, too
    if len(memory) <= _CHUNK:
        return Finding(crc32c(memory), test(memory))
    checksum, sound = 0, True
    for start in range(0, len(memory), _CHUNK):
        chunk = memory[start : start + _CHUNK]
        checksum = crc32c(chunk, checksum)
        sound = sound and test(chunk)
    return Finding(checksum, sound)


@lru_cache(maxsize=64)
def soundness(dtype: DType) -> Test | None:
    """The test of values of that dtype; None where all of them are sound."""
    if dtype == np.bool_:
        return lambda memory: bool(np.frombuffer(memory, np.uint8).max() <= 1)
    number = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    try:
        ml_dtypes.finfo(number)
    except ValueError:
        return None  # integers, quantized ones too
    infinity = np.array(np.inf).astype(number)
    if not np.isinf(infinity):  # a dtype of one byte that has NaN only
        return lambda memory: _is_finite(np.frombuffer(memory, number))
    # As integers, infinities and NaNs are the largest of their sign. Looking for the largest integers is several times
    # as fast as isfinite, and gives no warning about NaN.
    unsigned, signed = np.dtype(f"u{number.itemsize}"), np.dtype(f"i{number.itemsize}")
    positive, negative = infinity.view(unsigned), (-infinity).view(unsigned)

    def finite(memory: memoryview) -> bool:
        values = np.frombuffer(memory, unsigned)
        return bool(values.max() < negative and values.view(signed).max() < positive)

    if number.kind != "f" or number.itemsize < 4:
        return finite
    # Adding up is faster still, and a sum is finite only where all values are. The sum of large finite values may be
    # infinite: then they are looked at one by one.
    return lambda memory: math.isfinite(np.einsum("i->", np.frombuffer(memory, number))) or finite(memory)


def _is_finite(values: np.ndarray[tuple[int], DType]) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(values).all())
