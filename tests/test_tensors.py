"""Tensors share an array's memory exactly where that is safe."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync.graphs.tensors import ALIGNMENT, alias


def aligned(count: int, dtype: type[np.generic], offset: int = 0) -> npt.NDArray[Any]:
    """An array whose address is `offset` bytes past a multiple of the alignment."""
    size = count * np.dtype(dtype).itemsize
    room = np.zeros(size + 2 * ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT + offset
    return room[start : start + size].view(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int64, np.complex64])
def test_an_aligned_array_is_shared(dtype: type[np.generic]) -> None:
    array = aligned(100, dtype)
    tensor = alias(array)
    array[7] = 5
    assert tensor[7].numpy() == 5
    assert tensor.device.endswith("CPU:0")


def test_a_misaligned_array_is_copied_and_safe_to_compute_with() -> None:
    array = aligned(1000, np.float32, offset=4)
    tensor = alias(array)
    array[:] = 1
    assert float(tf.reduce_sum(tf.matmul(tf.reshape(tensor, (10, 100)), tf.ones((100, 10))))) == 0


@pytest.mark.parametrize(
    "array",
    [
        np.array([True, False]),
        np.array([1.5, -2.0], ml_dtypes.bfloat16),
        np.array([b"a", b"\x00b"], object),
        np.zeros((0, 3), np.float32),
        np.arange(100, dtype=np.float32)[::2],
        np.array(3.0, np.float32),
    ],
    ids=["bool", "bfloat16", "strings", "empty", "strided", "scalar"],
)
def test_what_cannot_be_shared_is_copied_with_its_values(array: npt.NDArray[Any]) -> None:
    np.testing.assert_array_equal(alias(array).numpy(), array)


def test_a_read_only_array_is_copied() -> None:
    array = aligned(10, np.float32)
    array.flags.writeable = False
    np.testing.assert_array_equal(alias(array).numpy(), array)


def test_a_tensor_keeps_its_array_alive_and_no_longer() -> None:
    array = aligned(100, np.float32)
    alive = weakref.ref(array)
    tensor = alias(array)
    del array
    gc.collect()
    assert alive() is not None
    assert float(tf.reduce_sum(tensor)) == 0
    del tensor
    gc.collect()
    assert alive() is None
