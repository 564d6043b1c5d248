"""A tensor is copied and looked at in stretches, of which none is left out, whatever its size."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from paramsync import parallel, pieces, plan
from paramsync.checksums import crc32c
from paramsync.examine import Finding
from paramsync.spares import Spares
from tests.arrays import any_bits

_STRETCH = 1 << 20
_FLOAT = np.dtype(np.float32)
SIZES = [0, 4, _STRETCH - 4, _STRETCH, _STRETCH + 4, 3 * _STRETCH + 8, plan.PORTION + _STRETCH + 4]


def written(folder: Path, values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> tuple[Finding, bytes]:
    content = values.view(np.uint8)
    with closing(Spares(folder)) as spares, spares.writing(folder / "data", max(1, len(content))) as file:
        [found] = pieces.write(file, plan.arrange((len(content),)), [content], [_FLOAT], lambda at: None)
    return found, (folder / "data").read_bytes()


@pytest.mark.parametrize("size", SIZES)
def test_every_byte_is_copied_and_in_the_checksum(tmp_path: Path, size: int) -> None:
    values = np.arange(size // 4, dtype=np.float32)
    found, content = written(tmp_path, values)
    assert content[:size] == values.tobytes()
    assert found == Finding(crc32c(values.tobytes()), True)


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_value_that_is_not_finite_is_found_in_any_stretch(tmp_path: Path, size: int, place: float) -> None:
    values = np.ones(size // 4, np.float32)
    values[int(place * (len(values) - 1))] = np.nan
    found, _ = written(tmp_path, values)
    assert found == Finding(crc32c(values.tobytes()), False)


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_one_byte_that_differs_is_seen_in_any_stretch(size: int, place: float) -> None:
    one = any_bits("uint8", (size,))
    other = one.copy()
    assert pieces.same([(one, other)]) == [True]
    other[int(place * (size - 1))] ^= 1
    assert pieces.same([(one, other)]) == [False]


def test_where_a_system_cannot_give_up_a_processor_all_else_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_yield")
    parallel.let_others_run()
    values = np.arange(_STRETCH, dtype=np.float32)
    assert written(tmp_path, values)[0] == Finding(crc32c(values.tobytes()), True)
