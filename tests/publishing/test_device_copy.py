"""Fetching from a device, which here is the CPU called one: the same code runs, and the same bytes must come out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.publishing.write_behind import device_of, fetch

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool", "complex64"]


def away(value: Any) -> str | None:
    """Every tensor is on a device; what is none stays here."""
    found: str | None = getattr(value, "backing_device", None)
    return found


def tensors() -> dict[str, tf.Tensor]:
    shapes: list[tuple[int, ...]] = [(), (3,), (0, 4), (17, 5), (64, 64), (2, 3, 4)]
    source = np.random.default_rng(0)
    return {
        f"{dtype}/{at}": tf.cast(source.integers(0, 100, shape), dtype)
        for at, shape in enumerate(shapes)
        for dtype in DTYPES
    }


@pytest.mark.parametrize("piece", [1, 1000, 1 << 20])
def test_what_is_fetched_is_bit_for_bit_what_was_there(piece: int) -> None:
    values = tensors()
    found = fetch(values, away=away, piece=piece)
    assert list(found) == list(values)
    for name, value in values.items():
        here = value.numpy()
        assert (found[name].dtype, found[name].shape) == (here.dtype, here.shape)
        assert found[name].tobytes() == here.tobytes()


def test_values_are_let_go_of_piece_by_piece() -> None:
    values = {f"{at}": tf.fill([1000], float(at)) for at in range(5)}
    left: list[int] = []

    def let_go(name: str) -> None:
        del values[name]
        left.append(len(values))

    found = fetch(values, away=away, piece=8000, fetched=let_go)
    assert left == [4, 3, 2, 1, 0]
    assert [array[0] for array in found.values()] == [0, 1, 2, 3, 4]


def test_what_is_in_the_hosts_memory_stays_where_it_is() -> None:
    value, other = tf.fill([1000], 1.0), np.array(b"graph", dtype=object)
    called: list[str] = []
    found = fetch({"value": value, "other": other}, fetched=called.append)
    assert device_of(value) is None
    assert np.shares_memory(found["value"], np.asarray(value))
    assert found["other"] is other
    assert called == []
