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

from paramsync import dtypes
from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.graphs.parameters import alias


def aligned(count: int, dtype: npt.DTypeLike, offset: int = 0) -> npt.NDArray[Any]:
    """An array whose address is `offset` bytes past a multiple of the alignment."""
    size = count * np.dtype(dtype).itemsize
    room = np.zeros(size + 2 * ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT + offset
    return room[start : start + size].view(dtype)


SHARED = [
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64",
    "float16 bfloat16 float32 float64 complex64 complex128",
]
COPIED = [
    "float8_e5m2 float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2fnuz float4_e2m1fn int2 int4 uint2 uint4",
    "qint8 quint8 qint16 quint16 qint32",
]
DTYPES = {dtypes.name(number): dtypes.to_numpy(number) for number in range(64) if number != dtypes.STRING}


def dtype_named(name: str) -> np.dtype[np.generic]:
    dtype = DTYPES[name]
    assert dtype is not None
    return dtype


@pytest.mark.parametrize("name", " ".join(SHARED).split())
def test_an_aligned_array_is_shared(name: str) -> None:
    array = aligned(100, dtype_named(name))
    tensor = alias(array)
    array.view(np.uint8)[:] = 1
    assert tensor.numpy().tobytes() == array.tobytes()
    assert tensor.dtype == getattr(tf, name)
    assert tensor.shape == (100,)
    assert tensor.device.endswith("CPU:0")


@pytest.mark.parametrize("name", " ".join(COPIED).split())
def test_what_dlpack_has_no_word_for_is_copied(name: str) -> None:
    array = aligned(100, dtype_named(name))
    tensor = alias(array)
    assert tensor.dtype.name == name
    array.view(np.uint8)[:] = 1
    assert not any(tensor.numpy().tobytes())


def test_every_dtype_of_a_checkpoint_is_either_shared_or_copied() -> None:
    named = " ".join(SHARED + COPIED).split()
    assert set(named) == {name for name, dtype in DTYPES.items() if dtype is not None}


@pytest.mark.parametrize(
    "array",
    [
        np.array([False, True, False])[1:],
        np.array([1.5, -2.0, 3.0], ml_dtypes.bfloat16)[1:],
        np.array([b"a", b"\x00b"], object),
        np.zeros((0, 3), np.float32),
        np.arange(100, dtype=np.float32)[::2],
        np.array(3.0, np.float32),
        aligned(1000, np.float32, offset=4),
        np.frombuffer(bytes(ALIGNMENT), np.float32),
    ],
    ids=["bool", "bfloat16", "strings", "empty", "strided", "scalar", "misaligned", "read-only"],
)
def test_what_cannot_be_shared_is_copied_with_its_values(array: npt.NDArray[Any]) -> None:
    np.testing.assert_array_equal(alias(array).numpy(), array)


@pytest.mark.parametrize("name", ["float32", "bool", "bfloat16"])
def test_a_tensor_keeps_its_array_alive_and_no_longer(name: str) -> None:
    array = aligned(100, dtype_named(name))
    alive = weakref.ref(array.base)  # the memory that the array is a view of
    tensor = alias(array)
    del array
    gc.collect()
    assert alive() is not None
    assert not tf.reduce_any(tf.cast(tensor, tf.bool))
    del tensor
    gc.collect()
    assert alive() is None
