"""Turns arrays into tensors of KServe's protocol, and back. Checks headers before memory is spent on contents."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from paramsync import dtypes
from paramsync.errors import InputError
from paramsync.graphs.specs import TensorSpec
from paramsync.kserve import open_inference_pb2 as pb
from paramsync.rpc.tensor_proto import TensorHeader, check_rank, check_shape, collected, extend, narrowed, numbers

Array = npt.NDArray[Any]

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}
_FIELDS: Mapping[str, str] = {  # FP16 and BF16 have none: they are always raw
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_NAMES: Mapping[str, str] = {
    "string": "BYTES",
    **{dtype.name: name for name, dtype in _DTYPES.items() if name != "BYTES"},
}
_LENGTH = struct.Struct("<I")


def datatype(dtype: str) -> str | None:
    """Return KServe's name for a TensorFlow dtype, or None if KServe lacks the dtype."""
    return _NAMES.get(dtype)


def outlines(tensors: Sequence[pb.ModelInferRequest.InferInputTensor]) -> dict[str, TensorHeader]:
    """Read the headers of inputs: name, dtype, shape. Raises InputError for an input that cannot be an array."""
    headers: dict[str, TensorHeader] = {}
    for tensor in tensors:
        what = f"input {tensor.name!r}"
        if tensor.name in headers:
            raise InputError(what, expected="each input once", found="it again")
        dtype = _DTYPES.get(tensor.datatype)
        if dtype is None:
            raise InputError(f"{what}, datatype", expected=f"one of {', '.join(_DTYPES)}", found=repr(tensor.datatype))
        check_rank(len(tensor.shape), what)  # before the shape is copied, because it may have millions of dimensions
        shape = tuple(tensor.shape)
        check_shape(shape, what, dtype.itemsize)
        headers[tensor.name] = TensorHeader(what, dtype, shape)
    return headers


def arrays(request: pb.ModelInferRequest, heads: Mapping[str, TensorHeader]) -> dict[str, Array]:
    """Read the inputs whose headers were checked. Raises InputError for contents that do not fit the headers."""
    raw = request.raw_input_contents
    typed = [tensor.name for tensor in request.inputs if tensor.HasField("contents")]
    if raw and typed:
        found = f"contents of {typed[0]!r} as well"
        raise InputError("inputs", expected="all of them in raw_input_contents, or none", found=found)
    if raw and len(raw) != len(request.inputs):
        raise InputError("raw_input_contents", expected=f"one for each of {len(request.inputs)} inputs", found=len(raw))
    if raw:
        flat = [of_raw(head, content) for head, content in zip(heads.values(), raw, strict=True)]
    else:
        flat = [_of_contents(heads[tensor.name], tensor) for tensor in request.inputs]
    return {name: array.reshape(head.shape) for (name, head), array in zip(heads.items(), flat, strict=True)}


def of_raw(head: TensorHeader, content: bytes) -> Array:
    return _strings(head, content) if head.dtype == object else numbers(head, content, "raw_input_contents")


def _strings(head: TensorHeader, content: bytes) -> Array:
    """Read strings, each of which follows its length in four bytes."""
    if head.count * _LENGTH.size > len(content):
        expected = f"{head.count} strings, each after its length in 4 bytes"
        raise InputError(str(head), expected=expected, found=f"{len(content)} bytes of raw_input_contents")
    array = np.empty(head.count, object)
    at = 0
    for index in range(head.count):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(content, at)[0] if start <= len(content) else start
        if at > len(content):
            expected = f"{head.count} strings, each after its length in 4 bytes"
            raise InputError(str(head), expected=expected, found=f"string {index} to end beyond the raw_input_contents")
        array[index] = content[start:at]
    if at != len(content):
        expected = f"{head.count} strings in raw_input_contents"
        raise InputError(str(head), expected=expected, found=f"{len(content) - at} bytes more")
    return array


def _of_contents(head: TensorHeader, tensor: pb.ModelInferRequest.InferInputTensor) -> Array:
    field = _FIELDS.get(tensor.datatype)
    if field is None:
        found = "contents" if tensor.HasField("contents") else "none"
        raise InputError(str(head), expected=f"{tensor.datatype} in raw_input_contents", found=found)
    other = [other_field.name for other_field, _ in tensor.contents.ListFields() if other_field.name != field]
    if other:
        raise InputError(str(head), expected=f"{tensor.datatype} in {field}", found=", ".join(other))
    values = getattr(tensor.contents, field)
    if len(values) != head.count:
        raise InputError(str(head), expected=f"{head.count} values in {field}", found=len(values))
    if head.dtype.itemsize < 4 and head.dtype.kind in "iu":
        return narrowed(head, collected(values, np.int64))
    return collected(values, head.dtype)


def fill(response: pb.ModelInferResponse, outputs: Mapping[str, Array], *, raw: bool) -> None:
    """Add outputs to a response, all raw or all in typed fields. If an output has no typed field, all are raw."""
    names = {name: datatype_of(array) for name, array in outputs.items()}
    raw = raw or any(name not in _FIELDS for name in names.values())
    for name, array in outputs.items():
        tensor = response.outputs.add(name=name, datatype=names[name], shape=array.shape)
        if raw:
            response.raw_output_contents.append(to_raw(array))
        else:
            extend(getattr(tensor.contents, _FIELDS[names[name]]), array)


def datatype_of(array: Array) -> str:
    """Return KServe's name for the dtype of an array. The caller has checked that KServe has this dtype."""
    return _NAMES[dtypes.name(dtypes.from_numpy(array.dtype) or 0)]


def to_raw(array: Array) -> bytes:
    """Return the bytes of an array. Each string follows its length in four bytes."""
    if array.dtype != object:
        return array.tobytes()
    return b"".join(part for string in array.flat for part in (_LENGTH.pack(len(string)), string))


def described(specs: Mapping[str, TensorSpec]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    """Describe inputs or outputs of a model. A dtype that KServe lacks gets TensorFlow's name."""
    of = pb.ModelMetadataResponse.TensorMetadata
    return [
        of(
            name=spec.name,
            datatype=datatype(spec.dtype) or spec.dtype.upper(),
            shape=[-1] if spec.shape is None else [-1 if size is None else size for size in spec.shape],
        )
        for spec in specs.values()
    ]
