"""Arrays as the tensors that prediction calls carry, and back, without TensorFlow."""

from __future__ import annotations

import math

import numpy as np

from paramsync import dtypes
from paramsync.errors import InputError, ParamsyncError
from paramsync.v1 import serving_pb2

_VALUE_FIELDS = {  # where senders may put values one by one in place of their bytes
    "float32": "float_val",
    "float64": "double_val",
    "int32": "int_val",
    "int16": "int_val",
    "int8": "int_val",
    "uint8": "int_val",
    "uint16": "int_val",
    "int64": "int64_val",
    "bool": "bool_val",
    "string": "string_val",
}


def from_array(array: np.ndarray) -> serving_pb2.Tensor:
    """Raises InputError for a dtype that TensorFlow lacks."""
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    number = dtypes.from_numpy(array.dtype)
    if number is None:
        raise InputError("array", expected="a dtype that TensorFlow has", found=array.dtype)
    tensor = serving_pb2.Tensor(dtype=number)
    tensor.tensor_shape.SetInParent()  # a scalar has a shape too
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if number == dtypes.STRING:
        tensor.string_val.extend(one if isinstance(one, bytes) else str(one).encode() for one in array.flat)
    else:
        tensor.tensor_content = array.tobytes()
    return tensor


def to_array(tensor: serving_pb2.Tensor) -> np.ndarray:
    """Raises ParamsyncError for a tensor that does not hold what it says."""
    dtype = dtypes.to_numpy(tensor.dtype)
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    name = dtypes.name(tensor.dtype)
    if dtype is None or tensor.tensor_shape.unknown_rank or min(shape, default=0) < 0:
        raise ParamsyncError(f"cannot read an answer of {name} {list(shape)}")
    if tensor.tensor_content:
        flat = np.frombuffer(tensor.tensor_content, np.uint8)
        count, found = math.prod(shape) * dtype.itemsize, flat.size
        if tensor.dtype == dtypes.STRING or count != found:
            raise ParamsyncError(f"answer of {name} {list(shape)}: expected {count} bytes, found {found}")
        return flat.view(dtype).reshape(shape)
    values = getattr(tensor, _VALUE_FIELDS.get(name, ""), ())
    count = math.prod(shape)
    if len(values) > count or (count and not values):
        raise ParamsyncError(f"answer of {name} {list(shape)}: expected {count} values, found {len(values)}")
    array = np.empty(count, dtype)
    array[: len(values)] = values
    array[len(values) :] = values[-1:]  # TensorFlow leaves out what repeats the last value
    return array.reshape(shape)
