"""TensorProto to array, tensor to TensorProto. What a stranger sent is checked before memory is spent on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from paramsync import dtypes
from paramsync.errors import InputError

Array = npt.NDArray[Any]

MAX_BYTES = 64 << 20
"""What a tensor may take that repeats one value; all others are bounded by the size of their message."""

_FIELDS = {  # where a sender puts values one by one
    "float32": "float_val",
    "float64": "double_val",
    "int8": "int_val",
    "int16": "int_val",
    "int32": "int_val",
    "uint8": "int_val",
    "uint16": "int_val",
    "int64": "int64_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "bool": "bool_val",
    "string": "string_val",
    "float16": "half_val",  # the bits, as integers
    "bfloat16": "half_val",
    "complex64": "scomplex_val",  # real and imaginary part in turn
    "complex128": "dcomplex_val",
}
_PARTS = {"complex64": np.float32, "complex128": np.float64}
_POINTER = 8  # bytes that each element of an array of strings takes besides its text
_PACKED = {tf.float32: (5, "<f4"), tf.float64: (6, "<f8")}  # number in TensorProto, what its values are on the wire


def decode(name: str, proto: tensor_pb2.TensorProto) -> Array:
    """The array an input holds; strings are an object array of bytes. Raises InputError that names the input."""
    what = f"input {name!r}"
    kind = dtypes.name(proto.dtype)
    dtype = dtypes.to_numpy(proto.dtype)
    if dtype is None or kind not in _FIELDS:
        raise InputError(f"{what}, dtype", expected="a dtype of numbers, booleans or strings", found=kind)
    shape = _shape(what, proto)
    count = math.prod(shape)
    if proto.tensor_content:
        return _of_content(what, proto.tensor_content, dtype, shape)
    values = getattr(proto, _FIELDS[kind])
    found = len(values) // (2 if kind in _PARTS else 1)
    if len(values) % (2 if kind in _PARTS else 1) or found not in (count, min(count, 1)):
        raise InputError(f"{what} {kind} {list(shape)}", expected=f"{count} values", found=found)
    size = max(dtype.itemsize, _POINTER if kind == "string" else 0)
    if found < count and count * size > MAX_BYTES:
        raise InputError(f"{what} {kind} {list(shape)}", expected=f"at most {MAX_BYTES} bytes", found=count * size)
    array = _of_values(what, kind, dtype, values)
    return (array if found == count else np.repeat(array, count)).reshape(shape)


def encode(tensor: tf.Tensor) -> tensor_pb2.TensorProto:
    """An output, in the typed fields that clients of TensorFlow Serving are used to."""
    proto = tensor_pb2.TensorProto(dtype=tensor.dtype.as_datatype_enum)
    proto.tensor_shape.SetInParent()  # a scalar has a shape too
    for size in tensor.shape:
        proto.tensor_shape.dim.add(size=size)
    array = tensor.numpy()
    field = _FIELDS.get(tensor.dtype.name)
    if tensor.dtype in _PACKED:
        number, wire = _PACKED[tensor.dtype]
        proto.MergeFromString(_packed(number, np.asarray(array, wire).tobytes()))
    elif field == "string_val":
        proto.string_val.extend(np.asarray(array, object).reshape(-1).tolist())
    elif field is None or field in ("half_val", "scomplex_val", "dcomplex_val"):
        proto.tensor_content = np.asarray(array).tobytes()
    else:
        getattr(proto, field).extend(np.asarray(array).reshape(-1).tolist())
    return proto


def _shape(what: str, proto: tensor_pb2.TensorProto) -> tuple[int, ...]:
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or min(shape, default=0) < 0:
        found = "an unknown rank" if proto.tensor_shape.unknown_rank else list(shape)
        raise InputError(f"{what}, shape", expected="dimensions of 0 or more", found=found)
    if len(shape) > 32:  # what a numpy array may have at least
        raise InputError(f"{what}, shape", expected="at most 32 dimensions", found=len(shape))
    if math.prod(size for size in shape if size) >= 1 << 62:  # beyond any array, even an empty one
        raise InputError(f"{what}, shape", expected="fewer elements", found=list(shape))
    return shape


def _of_content(what: str, content: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if dtype.kind == "O":
        raise InputError(what, expected="strings in string_val", found="tensor_content")
    size = math.prod(shape) * dtype.itemsize
    if len(content) != size:
        raise InputError(
            f"{what} {dtype} {list(shape)}", expected=f"{size} bytes of tensor_content", found=len(content)
        )
    if dtype.kind == "b":  # any byte but 0 is true; a boolean of another byte than 1 is not defined
        return np.not_equal(np.frombuffer(content, np.uint8), 0).reshape(shape)
    return np.frombuffer(content, dtype).reshape(shape)


def _of_values(what: str, kind: str, dtype: np.dtype[Any], values: Any) -> Array:
    if kind == "string":
        array = np.empty(len(values), object)
        array[:] = values
        return array
    if kind in _PARTS:
        return np.fromiter(values, _PARTS[kind], len(values)).view(dtype)
    if _FIELDS[kind] in ("int_val", "half_val"):
        wide = np.fromiter(values, np.int32, len(values))
        limits = np.iinfo(np.uint16 if kind in ("float16", "bfloat16") else dtype)
        if wide.size and not (limits.min <= wide.min() and wide.max() <= limits.max):
            raise InputError(f"{what} {kind}", expected=f"values from {limits.min} to {limits.max}", found="others")
        return wide.astype(np.uint16).view(dtype) if _FIELDS[kind] == "half_val" else wide.astype(dtype)
    return np.fromiter(values, dtype, len(values))


def _packed(number: int, content: bytes) -> bytes:
    """A packed repeated field of fixed-size values as it is on the wire: far cheaper than one Python number each."""
    length = len(content)
    prefix = bytearray([number << 3 | 2])
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + content
