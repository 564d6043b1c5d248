"""Looks at memory once, on several threads: what its checksum is, and whether its values may be served."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import ml_dtypes
import numpy as np

from paramsync.host.parallel import THREADS, each
from paramsync.tensorbundle.checksums import combine, crc32c

_JOB = 8 << 20  # bytes that a thread takes at once: few enough for all threads to end together
_CHUNK = 2 << 20  # bytes that are still in a cache after the checksum, when their values are looked at
_FEW = 2 << 20  # bytes that one thread has seen by the time that others would have started
_SMALL = 1 << 20  # bytes of a region, on average, below which threads wait for the interpreter more than they read

DType = np.dtype[np.generic]


@dataclass(frozen=True, slots=True)
class Region:
    """The memory of a tensor; `dtype` is what its values are, None where they do not matter.

    `check` is called with offset and size of what is looked at next; an error that it raises ends the work.
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

_Piece = tuple[int, int, int]  # number of the region, start, end


def examine(regions: Sequence[Region], *, threads: int = THREADS) -> list[Finding]:
    """A finding for each region, from one pass over the memory of all."""
    tests = [None if region.dtype is None else soundness(region.dtype) for region in regions]
    found: list[dict[int, Finding]] = [{} for _ in regions]  # by where the piece begins

    def work(job: list[_Piece]) -> None:
        for number, start, end in job:
            region = regions[number]
            if region.check is not None:
                region.check(start, end - start)
            found[number][start] = _look(region.memory[start:end], tests[number])

    each(work, _jobs(regions), threads=min(threads, _useful_threads(regions)))
    return [_joined(region, pieces) for region, pieces in zip(regions, found, strict=True)]


def _useful_threads(regions: Sequence[Region]) -> int:
    size = sum(len(region.memory) for region in regions)
    if size < _FEW:
        return 1
    return THREADS if size >= _SMALL * len(regions) else 2


def _jobs(regions: Sequence[Region]) -> Iterator[list[_Piece]]:
    """Large regions in pieces, small ones together."""
    job: list[_Piece] = []
    size = 0
    for number, region in enumerate(regions):
        for start in range(0, len(region.memory), _JOB):
            end = min(start + _JOB, len(region.memory))
            job.append((number, start, end))
            size += end - start
            if size >= _JOB:
                yield job
                job, size = [], 0
    yield job


def _look(memory: memoryview, test: Test | None) -> Finding:
    if test is None:
        return Finding(crc32c(memory), True)  # in one go: whoever serves wants the interpreter, too
    if len(memory) <= _CHUNK:
        return Finding(crc32c(memory), test(memory))
    checksum = 0
    sound = True
    for start in range(0, len(memory), _CHUNK):
        chunk = memory[start : start + _CHUNK]
        checksum = crc32c(chunk, checksum)
        if sound:
            sound = test(chunk)
    return Finding(checksum, sound)


def _joined(region: Region, pieces: dict[int, Finding]) -> Finding:
    if len(pieces) == 1:
        return pieces[0]
    checksum = 0
    for start, piece in sorted(pieces.items()):
        length = min(_JOB, len(region.memory) - start)
        checksum = combine(checksum, piece.checksum, length) if start else piece.checksum
    return Finding(checksum, all(piece.sound for piece in pieces.values()))


@lru_cache(maxsize=64)
def soundness(dtype: DType) -> Test | None:
    """The test of values of that dtype; None where it has no others than sound ones."""
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
    # Adding up is faster still, and a sum is finite only where all values are. The sum of large values may not be: then
    # they are looked at.
    return lambda memory: math.isfinite(np.einsum("i->", np.frombuffer(memory, number))) or finite(memory)


def _is_finite(values: np.ndarray[tuple[int], DType]) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(values).all())
