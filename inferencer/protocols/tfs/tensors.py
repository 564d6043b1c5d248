"""Outputs to TensorProto, in the fields that clients of TensorFlow Serving read. Inputs: paramsync.rpc.tensor_proto."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import tensor_pb2

from paramsync import dtypes
from paramsync.rpc.tensor_proto import VALUE_FIELDS, extend, packed

_PACKED = {1: (5, "<f4"), 2: (6, "<f8")}  # by dtype: number in TensorProto, what its values are on the wire


def encode(array: npt.NDArray[Any], proto: tensor_pb2.TensorProto | None = None) -> tensor_pb2.TensorProto:
    """An output, in the typed fields that clients of TensorFlow Serving are used to; into `proto`, if there is one."""
    proto = tensor_pb2.TensorProto() if proto is None else proto
    number = dtypes.from_numpy(array.dtype)
    assert number is not None  # TensorFlow made it
    content = _head(number, array.shape)
    field = VALUE_FIELDS.get(dtypes.name(number))
    if number in _PACKED:
        place, wire = _PACKED[number]
        proto.MergeFromString(content + packed(place, np.asarray(array, wire).tobytes()))
        return proto
    proto.MergeFromString(content)
    if field == "string_val":
        extend(proto.string_val, np.asarray(array, object))
    elif field is None or field in ("half_val", "scomplex_val", "dcomplex_val"):
        proto.tensor_content = np.asarray(array).tobytes()
    else:
        extend(getattr(proto, field), np.asarray(array))
    return proto


@lru_cache(1024)
def _head(number: int, shape: tuple[int, ...]) -> bytes:
    """Dtype and shape as they are on the wire."""
    proto = tensor_pb2.TensorProto(dtype=number)
    proto.tensor_shape.SetInParent()  # a scalar has a shape too
    for size in shape:
        proto.tensor_shape.dim.add().size = size
    content: bytes = proto.SerializeToString()
    return content
