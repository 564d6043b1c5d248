"""tf.Tensor to TensorProto, in the fields that clients of TensorFlow Serving read. The way back is paramsync.wire's."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from paramsync.wire import VALUE_FIELDS

_PACKED = {tf.float32: (5, "<f4"), tf.float64: (6, "<f8")}  # number in TensorProto, what its values are on the wire


def encode(tensor: tf.Tensor) -> tensor_pb2.TensorProto:
    """An output, in the typed fields that clients of TensorFlow Serving are used to."""
    proto = tensor_pb2.TensorProto(dtype=tensor.dtype.as_datatype_enum)
    proto.tensor_shape.SetInParent()  # a scalar has a shape too
    for size in tensor.shape:
        proto.tensor_shape.dim.add(size=size)
    array = tensor.numpy()
    field = VALUE_FIELDS.get(tensor.dtype.name)
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


def _packed(number: int, content: bytes) -> bytes:
    """A packed repeated field of fixed-size values as it is on the wire: far cheaper than one Python number each."""
    length = len(content)
    prefix = bytearray([number << 3 | 2])
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + content
