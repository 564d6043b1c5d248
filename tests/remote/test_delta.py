"""Deltas of blocks: every pair of arrays comes back bit by bit, and no bytes do harm."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsync.remote import delta

DTYPES = [np.uint8, np.uint16, np.uint32, np.uint64]


@given(
    dtype=st.sampled_from(DTYPES),
    size=st.sampled_from([1, 2, 65_535, 65_536, 65_537, 200_001]),
    share=st.sampled_from([0.0, 1e-5, 0.01, 0.2, 0.3, 0.6, 1.0]),
    spread=st.sampled_from([1, 100, 2**63]),
    zeros=st.sampled_from([0, 1, 3]),
    seed=st.integers(0, 1 << 32),
)
@settings(deadline=None)
def test_new_is_old_and_its_delta(dtype: Any, size: int, share: float, spread: int, zeros: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    top = int(np.iinfo(dtype).max)
    old = chance.integers(0, top, size, dtype, endpoint=True)
    new = old.copy()
    changed = chance.random(size) < share
    new[changed] += chance.integers(0, min(spread, top), int(changed.sum()), np.uint64).astype(dtype) << 8 * zeros % (
        8 * old.itemsize
    )
    packed = memoryview(delta.encode(old, new))
    target = old.copy()
    delta.apply(packed, target, target)
    assert target.tobytes() == new.tobytes()
    elsewhere = np.empty_like(old)
    delta.apply(packed, old, elsewhere)
    assert elsewhere.tobytes() == new.tobytes()


@given(
    dtype=st.sampled_from(DTYPES),
    size=st.sampled_from([1, 65_537, 200_001]),
    shares=st.lists(st.sampled_from([0.0, 1e-5, 0.01, 0.3, 1.0]), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 32),
)
@settings(deadline=None)
def test_deltas_add_up(dtype: Any, size: int, shares: list[float], seed: int) -> None:
    chance = np.random.default_rng(seed)
    old = chance.integers(0, int(np.iinfo(dtype).max), size, dtype, endpoint=True)
    new, deltas = old, []
    for share in shares:
        before, new = new, new + (chance.random(size) < share).astype(dtype) * dtype(chance.integers(1, 100))
        deltas.append(memoryview(delta.encode(before, new)))
    added = delta.add(deltas, size, np.dtype(dtype))
    target = np.empty_like(old)
    delta.apply(memoryview(added), old, target)
    assert target.tobytes() == new.tobytes()


@pytest.mark.parametrize("size", [1, 1000])
def test_deltas_without_small_differences_add_up(size: int) -> None:
    chance = np.random.default_rng(0)
    versions = [chance.integers(0, 256, size, np.uint8) for _ in range(4)]
    deltas = [memoryview(delta.encode(*pair)) for pair in pairwise(versions)]
    assert deltas[0][0] == delta.RAW
    for some in (deltas, deltas[:1]):
        target = np.empty_like(versions[0])
        delta.apply(memoryview(delta.add(some, size, np.dtype(np.uint8))), versions[0], target)
        assert (target == versions[len(some)]).all()


def test_differences_that_add_up_to_large_ones_stay_differences() -> None:
    chance = np.random.default_rng(0)
    steps = [chance.integers(0, 16, 100, np.uint8) for _ in range(16)]
    versions: list[Any] = [np.zeros(100, np.uint8)]
    for step in steps:
        versions.append(versions[-1] + step * np.uint8(16))
    deltas = [memoryview(delta.encode(*pair)) for pair in pairwise(versions)]
    target = np.empty_like(versions[0])
    delta.apply(memoryview(delta.add(deltas, 100, np.dtype(np.uint8))), versions[0], target)
    assert (target == versions[-1]).all()


def test_a_weight_that_crosses_zero_costs_no_more_than_its_bytes() -> None:
    old = np.full(1 << 16, 1e-3, np.float32)
    new = -old
    packed = delta.encode(old.view(np.uint32), new.view(np.uint32))
    assert len(packed) < old.nbytes / 8
    target = old.copy()
    delta.apply(memoryview(packed), target.view(np.uint32), target.view(np.uint32))
    assert (target == new).all()


@pytest.mark.parametrize("share", [0.01, 0.26, 1.0])
def test_low_bytes_that_are_always_zero_cost_nothing(share: float) -> None:
    chance = np.random.default_rng(0)
    old = chance.integers(0, 1 << 16, 1 << 18, np.uint16)
    new = old.copy()
    changed = chance.random(len(old)) < share
    new[changed] += chance.integers(-3, 4, int(changed.sum())).astype(np.uint16)
    wide = delta.encode(np.left_shift(old, 16, dtype=np.uint32), np.left_shift(new, 16, dtype=np.uint32))
    assert len(wide) <= len(delta.encode(old, new)) + 100


@pytest.mark.parametrize(("share", "most"), [(0.0, 1e-5), (0.01, 0.011), (0.05, 0.04)])
def test_a_delta_of_few_small_changes_is_small(share: float, most: float) -> None:
    chance = np.random.default_rng(0)
    old = chance.standard_normal(1 << 20, np.float32)
    new = old.copy()
    changed = chance.random(len(old)) < share
    new[changed] *= 1 + 1e-3
    assert len(delta.encode(old.view(np.uint32), new.view(np.uint32))) <= most * old.nbytes


@given(st.binary(max_size=300), st.integers(0, 4), st.integers(1, 70_000))
def test_arbitrary_bytes_are_refused_or_applied(content: bytes, form: int, size: int) -> None:
    target = np.zeros(size, np.uint32)
    for packed in (content, bytes([form]) + content):
        with suppress(ValueError):
            delta.apply(memoryview(packed), target, target)


@pytest.mark.parametrize("share", [0.01, 1.0])
def test_every_cut_and_every_flipped_byte_of_a_head_is_refused(share: float) -> None:
    chance = np.random.default_rng(1)
    old = chance.integers(0, 1 << 32, 1000, np.uint32)
    new = old.copy()
    new[: int(1000 * share)] += 3
    packed = delta.encode(old, new)
    for cut in range(len(packed)):
        with pytest.raises(ValueError, match="expected"):
            delta.apply(memoryview(packed[:cut]), old, old.copy())
    for at in range(10):
        changed = bytearray(packed)
        changed[at] ^= 0x7F
        with pytest.raises(ValueError, match="expected"):
            delta.apply(memoryview(bytes(changed)), old, old.copy())
