"""Translates between TensorFlow's dtype numbers and numpy's dtypes, without importing TensorFlow.

A number of less than 8 bits takes a whole byte, both in checkpoints and in numpy. A quantized number is a record with
one field that has the name of the dtype, as in TensorFlow.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
"""The values of a tensor of any shape and dtype. Strings have the dtype object."""

BOOL = 10
STRING = 7
VARIANT = 21

_NAMES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    STRING: "string",
    8: "complex64",
    9: "int64",
    BOOL: "bool",
    11: "qint8",
    12: "quint8",
    13: "qint32",
    14: "bfloat16",
    15: "qint16",
    16: "quint16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    20: "resource",
    VARIANT: "variant",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
    26: "float8_e4m3fnuz",
    27: "float8_e4m3b11fnuz",
    28: "float8_e5m2fnuz",
    29: "int4",
    30: "uint4",
    31: "int2",
    32: "uint2",
    33: "float4_e2m1fn",
}
_QUANTIZED = {"qint8": "i1", "quint8": "u1", "qint16": "<i2", "quint16": "<u2", "qint32": "<i4"}
_OPAQUE = {"resource", "variant"}


def _numpy(name: str) -> np.dtype[np.generic]:
    if name in _QUANTIZED:
        return np.dtype([(name, _QUANTIZED[name])])
    return np.dtype(object if name == "string" else getattr(ml_dtypes, name, name))


_NUMPY = {number: _numpy(name) for number, name in _NAMES.items() if name not in _OPAQUE}
_NUMBERS = {dtype: number for number, dtype in _NUMPY.items()}


def to_numpy(number: int) -> np.dtype[np.generic] | None:
    """Return the numpy dtype for TensorFlow's dtype number (object for strings); None if numpy has no such dtype."""
    return _NUMPY.get(number)


def named(name: str) -> np.dtype[np.generic] | None:
    """Return the numpy dtype for TensorFlow's dtype name; None if numpy has no such dtype."""
    return None if name in _OPAQUE or name not in _NAMES.values() else _numpy(name)


def from_numpy(dtype: np.dtype[np.generic]) -> int | None:
    """Return TensorFlow's number for a numpy dtype; None if TensorFlow has no such dtype."""
    return STRING if dtype.kind in "OSU" else _NUMBERS.get(dtype)


def name(number: int) -> str:
    """Return TensorFlow's name for its dtype number."""
    return _NAMES.get(number, f"dtype {number}")
