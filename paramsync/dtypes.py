"""Which numpy dtype each of TensorFlow's dtype numbers stands for, without importing TensorFlow."""

from __future__ import annotations

import ml_dtypes
import numpy as np

STRING = 7

_NAMES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    8: "complex64",
    9: "int64",
    10: "bool",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
}
_NUMPY: dict[int, np.dtype[np.generic]] = {number: np.dtype(name) for number, name in _NAMES.items()}
_NUMPY[14] = np.dtype(ml_dtypes.bfloat16)
_NUMBERS = {dtype: number for number, dtype in _NUMPY.items()}


def to_numpy(number: int) -> np.dtype[np.generic] | None:
    """The numpy dtype of a TensorFlow dtype number; strings are object arrays of bytes; None for what numpy lacks."""
    return np.dtype(object) if number == STRING else _NUMPY.get(number)


def from_numpy(dtype: np.dtype[np.generic]) -> int | None:
    """The TensorFlow number of a numpy dtype; None where TensorFlow has no such dtype."""
    return STRING if dtype.kind in "OSU" else _NUMBERS.get(dtype)


def name(number: int) -> str:
    """What people call it."""
    if number == STRING:
        return "string"
    dtype = _NUMPY.get(number)
    return str(dtype) if dtype is not None else f"dtype {number}"
