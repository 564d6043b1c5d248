"""Arrays of every dtype that TensorFlow saves, with random bits. Imports no TensorFlow."""

from __future__ import annotations

import numpy as np

from paramsync import dtypes
from paramsync.dtypes import Array

DTYPES = {dtypes.name(number): dtypes.to_numpy(number) for number in range(64) if number != dtypes.STRING}
NUMERIC = [name for name, dtype in DTYPES.items() if dtype is not None]
_BITS = {"bool": 1, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4}  # used bits of a byte, if not 8


def any_bits(name: str, shape: tuple[int, ...]) -> Array:
    """An array of random bits: every bit pattern may occur, including NaNs."""
    dtype = DTYPES[name]
    assert dtype is not None
    size = int(np.prod(shape)) * dtype.itemsize
    content = np.random.default_rng(size).integers(0, 1 << _BITS.get(name, 8), size, np.uint8)
    return content.view(dtype).reshape(shape)


def strings(*values: bytes) -> Array:
    return np.array([*values, None], object)[:-1]  # without None, numpy would guess a dtype for some values
