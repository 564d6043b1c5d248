"""Memory is looked at once, in pieces on several threads, and what is found is what a look at all of it would find."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from crc32c import crc32c

from paramsync import dtypes
from paramsync.checkpoint.tensor_bytes import PORTION, DType, Finding, Region, examine
from paramsync.dtypes import Array

MIB = 1 << 20
FLOATS = [
    np.dtype(one)
    for one in (
        np.float16,
        np.float32,
        np.float64,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e4m3b11fnuz,
        ml_dtypes.float8_e5m2fnuz,
    )
]


def region(array: Array, dtype: DType | None = None) -> Region:
    return Region(array.reshape(-1).view(np.uint8).data, dtype)


def sound(array: Array) -> bool:
    return examine([region(array, array.dtype)])[0].sound


@pytest.mark.parametrize("threads", [1, 4])
def test_checksums_are_those_of_whole_regions(threads: int) -> None:
    content = np.random.default_rng(0).integers(0, 256, 20 * MIB, np.uint8)
    lengths = [0, 1, 5000, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 17 * MIB + 3, 0, 64, *[100] * 50]
    pieces = [content[:length] for length in lengths]
    found = examine([region(piece) for piece in pieces], threads=threads)
    assert found == [Finding(crc32c(piece.data), True) for piece in pieces]


def test_nothing_to_look_at_is_nothing_found() -> None:
    assert examine([]) == []


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_each_value_is_judged_as_isfinite_would(dtype: DType) -> None:
    bits = np.arange(1 << 8 * min(dtype.itemsize, 2), dtype=f"u{min(dtype.itemsize, 2)}")
    if dtype.itemsize > 2:
        bits = bits.astype(f"u{dtype.itemsize}") << np.array(8 * dtype.itemsize - 16, f"u{dtype.itemsize}")
    values = bits.view(dtype)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(values)
    assert sound(values[finite])
    for bad in values[~finite].reshape(-1, 1)[:: max(1, (~finite).sum() // 500)]:
        assert not sound(bad)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("at", [0, 1_100_000, -1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_value_among_many_is_found(dtype: type[np.floating], at: int, bad: float) -> None:
    limits = np.finfo(dtype)
    values = np.resize(np.array([limits.max, limits.min, -0.0, limits.tiny], dtype), 2_500_000)
    assert sound(values)
    assert sound(values.view(np.result_type(dtype, np.complex64)))
    values[at] = bad
    assert not sound(values)
    assert not sound(values.view(np.result_type(dtype, np.complex64)))


def test_a_bool_is_0_or_1() -> None:
    assert sound(np.array([0, 1, 0], np.uint8).view(np.bool_))
    assert not sound(np.array([0, 1, 2], np.uint8).view(np.bool_))
    assert not sound(np.array([255], np.uint8).view(np.bool_))


@pytest.mark.parametrize("number", [number for number in range(64) if dtypes.to_numpy(number) is not None])
def test_every_dtype_can_be_looked_at(number: int) -> None:
    dtype = dtypes.to_numpy(number)
    assert dtype is not None
    assert dtype.kind == "O" or sound(np.zeros(100, np.uint8)[: 100 - 100 % dtype.itemsize].view(dtype))


def test_values_that_do_not_matter_are_not_looked_at() -> None:
    assert examine([region(np.array([np.nan]))])[0].sound


def test_what_is_looked_at_is_checked_first_and_only_once() -> None:
    content = np.zeros(17 * MIB + 3, np.uint8)
    seen: list[tuple[int, int]] = []
    examine([Region(content.data, check=lambda start, size: seen.append((start, size)))])
    starts = range(0, len(content), PORTION)
    assert sorted(seen) == [(start, min(PORTION, len(content) - start)) for start in starts]


def test_an_error_of_the_check_ends_the_work() -> None:
    def gone(start: int, size: int) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        examine([Region(np.zeros(9 * MIB, np.uint8).data, check=gone)])
