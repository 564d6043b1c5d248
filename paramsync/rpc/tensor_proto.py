"""Converts arrays to the tensors that prediction calls carry, and back, without TensorFlow.

The header of a tensor is checked before memory is allocated for its values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from paramsync import dtypes
from paramsync.errors import InputError
from paramsync.tensorbundle import sstable
from paramsync.v1 import serving_pb2

Tensor = Any
"""A serving_pb2.Tensor or a tensorflow.TensorProto: they have the same fields."""

MAX_BYTES = 64 << 20
"""The most bytes, together, of those arrays of a call that repeat a value. The message's size limits other arrays."""

VALUE_FIELDS = {  # fields that list single values instead of bytes
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
_READ_FIELDS = {  # fields that other senders use; we send these dtypes as bytes
    **dict.fromkeys(("qint8", "quint8", "qint16", "quint16", "qint32", "int4", "uint4", "int2", "uint2"), "int_val"),
    **{name: "float8_val" for number in range(64) if (name := dtypes.name(number)).startswith(("float8", "float4"))},
    **VALUE_FIELDS,
}
_ALL_FIELDS = sorted(set(_READ_FIELDS.values()))
_FIXED = {"float32": 5, "float64": 6}  # field numbers of dtypes with the same bytes on the wire and in memory
_BY_NAME = {dtypes.name(number): number for number in range(1, dtypes.VARIANT + 3)}
_PLAIN = {
    name: (number, dtype)
    for name, number in _BY_NAME.items()
    if (dtype := dtypes.to_numpy(number)) is not None and dtype.isbuiltin == 1 and dtype.kind in "fiuc"
}
_PARTS = {"complex64": np.float32, "complex128": np.float64}
_SOME = 1 << 16  # most values that are converted to Python objects in one step
_MOST_DIMENSIONS = 32  # all releases of numpy support this many
_ADDRESSABLE = 1 << 63  # bytes; numpy refuses larger shapes, even with a dimension of 0


def from_array(array: np.ndarray) -> serving_pb2.Tensor:
    """Return the tensor of an array. Raises InputError for a dtype that TensorFlow lacks."""
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    number = dtypes.from_numpy(array.dtype)
    if number is None:
        raise InputError("array", expected="a dtype that TensorFlow has", found=array.dtype)
    tensor = serving_pb2.Tensor(dtype=number)
    tensor.tensor_shape.SetInParent()  # a scalar has a shape too
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if number == dtypes.STRING:
        tensor.string_val.extend(value if isinstance(value, bytes) else str(value).encode() for value in array.flat)
    else:
        tensor.tensor_content = array.tobytes()
    return tensor


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Dtype and shape of a tensor, read before its values. `what` names the tensor in messages."""

    what: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes of the array; for strings only the bytes of the pointers."""
        return self.count * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.what} {'string' if self.dtype.kind == 'O' else self.dtype} {list(self.shape)}"


def header(tensor: Tensor, what: str) -> TensorHeader:
    """Return the header of a tensor. Raises InputError, which begins with `what`, if it describes no array."""
    dtype = dtypes.to_numpy(tensor.dtype)
    if dtype is None:
        expected = "a dtype of numbers, booleans or strings"
        raise InputError(f"{what}, dtype", expected=expected, found=dtypes.name(tensor.dtype))
    return TensorHeader(what, dtype, _shape(tensor, what, dtype.itemsize))


def to_arrays(tensors: Mapping[str, Tensor], side: str) -> dict[str, np.ndarray]:
    """Return the arrays of one call; strings are object arrays of bytes. `side` is "input" or "output".

    Raises InputError, which names the first tensor whose values do not fit its header.
    """
    arrays = {}
    left = MAX_BYTES
    for name, tensor in tensors.items():
        head = header(tensor, f"{side} {name!r}")
        array = _of_content(head, tensor.tensor_content) if tensor.tensor_content else _of_values(head, tensor)
        if array.size < head.count:  # TensorFlow leaves out repetitions of the last value, and zeros
            left -= head.size
            if left < 0:
                expected = f"at most {MAX_BYTES} bytes of repeated values"
                raise InputError(f"{side}s", expected=expected, found=f"{head.size} in {head}")
            array = _repeated(array, head.count)
        arrays[name] = array.reshape(head.shape)
    return arrays


def check_shape(shape: Sequence[int], what: str, itemsize: int) -> None:
    """Raise InputError, which begins with `what`, if no array can have this shape and elements of this size."""
    check_rank(len(shape), what)
    if min(shape, default=0) < 0:
        raise InputError(f"{what}, shape", expected="dimensions of 0 or more", found=list(shape))
    most = MAX_BYTES if 0 in shape else _ADDRESSABLE  # kernels loop over the other dimensions of empty arrays
    if math.prod(size for size in shape if size) * itemsize >= most:
        raise InputError(f"{what}, shape", expected="fewer elements", found=list(shape))


def check_rank(rank: int, what: str) -> None:
    """Raise InputError for more dimensions than any array has."""
    if rank > _MOST_DIMENSIONS:
        raise InputError(f"{what}, shape", expected=f"at most {_MOST_DIMENSIONS} dimensions", found=rank)


def plain(tensor: Tensor, dtype: str, shape: Sequence[int | None]) -> np.ndarray | None:
    """Read the usual kind of tensor fast: expected dtype and shape, and all values in one piece.

    Returns None for every other tensor, valid or not: `to_arrays` reads it.
    """
    known = _PLAIN.get(dtype)
    if known is None or tensor.dtype != known[0]:
        return None
    if not shape or len(tensor.tensor_shape.dim) != len(shape):
        return None
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    count = 1
    for size, expected in zip(sizes, shape):  # noqa: B905, they are equally long
        if size <= 0 or (expected is not None and size != expected):
            return None
        count *= size
    size = count * known[1].itemsize
    content = tensor.tensor_content
    if not content and dtype in _FIXED:
        content = _fixed(tensor, _FIXED[dtype], size)
    return np.frombuffer(content, known[1]).reshape(sizes) if len(content) == size else None


def collected(values: Any, dtype: npt.DTypeLike) -> np.ndarray:
    """Copy the values of a repeated field into an array, in steps, so that other threads get the GIL in between."""
    array = np.empty(len(values), dtype)
    for at in range(0, len(values), _SOME):
        array[at : at + _SOME] = values[at : at + _SOME]
    return array


def extend(values: Any, array: np.ndarray) -> None:
    """Put an array's values into a repeated field, in steps, as `collected` does."""
    flat = array.reshape(-1)
    for at in range(0, flat.size, _SOME):
        values.extend(flat[at : at + _SOME].tolist())


def packed(number: int, content: bytes) -> bytes:
    """Return the bytes of a packed repeated field. This is far faster than adding the values as Python numbers."""
    return opening(number, len(content)) + content


def opening(number: int, size: int) -> bytes:
    """Return the tag and length before the `size` bytes of a field: packed values, a string, a message."""
    return bytes([number << 3 | 2]) + sstable.varint(size)


def _fixed(tensor: Tensor, number: int, size: int) -> bytes:
    """Return the values of a packed field as bytes, if they are the last `size` bytes of the tensor's message.

    Returns no bytes otherwise. `number` is the field's number.
    """
    content: bytes = tensor.SerializeToString()
    values = content[len(content) - size :]
    return values if content.endswith(packed(number, values)) else b""


def _shape(tensor: Tensor, what: str, itemsize: int) -> tuple[int, ...]:
    if tensor.tensor_shape.unknown_rank:
        raise InputError(f"{what}, shape", expected="dimensions of 0 or more", found="an unknown rank")
    check_rank(len(tensor.tensor_shape.dim), what)  # checked first, because reading millions of dimensions takes long
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    check_shape(shape, what, itemsize)
    return shape


def _repeated(array: np.ndarray, count: int) -> np.ndarray:
    """Extend an array to `count` values by repeating its last value. Without any value, all are zero or empty."""
    zero = b"" if array.dtype.kind == "O" else np.zeros((), array.dtype)
    whole = np.empty(count, array.dtype)
    whole.fill(array[-1] if array.size else zero)  # np.full would drop the trailing zero byte of strings
    whole[: array.size] = array
    return whole


def _of_content(head: TensorHeader, content: bytes) -> np.ndarray:
    return _strings(head, content) if head.dtype.kind == "O" else numbers(head, content, "tensor_content")


def numbers(head: TensorHeader, content: bytes, field: str) -> np.ndarray:
    """Read values, other than strings, from the bytes of `field`. Raises InputError if their number is wrong."""
    if len(content) != head.size:
        raise InputError(str(head), expected=f"{head.size} bytes of {field}", found=len(content))
    if head.dtype.kind == "b":  # any byte but 0 is true; booleans of other bytes than 0 and 1 are undefined
        return np.not_equal(np.frombuffer(content, np.uint8), 0)
    return np.frombuffer(content, head.dtype)


def _strings(head: TensorHeader, content: bytes) -> np.ndarray:
    """Read strings from bytes that begin with the lengths of all strings as varints."""
    expected = f"{head.count} strings in tensor_content, after their lengths"
    if len(content) < head.count:
        raise InputError(str(head), expected=expected, found=f"{len(content)} bytes")
    try:
        lengths, at = sstable.read_varints(content, 0, head.count)
    except (IndexError, ValueError) as error:
        raise InputError(str(head), expected=expected, found="malformed lengths") from error
    if at + sum(lengths) != len(content):
        raise InputError(str(head), expected=expected, found=f"{len(content) - at} bytes for {sum(lengths)}")
    array = np.empty(head.count, object)
    for index, length in enumerate(lengths):
        array[index] = content[at : at + length]
        at += length
    return array


def _of_values(head: TensorHeader, tensor: Tensor) -> np.ndarray:
    """Return the listed values of a tensor: all, or fewer if the last value repeats, or none if all are zero."""
    kind = dtypes.name(tensor.dtype)
    field = _READ_FIELDS[kind]
    values = getattr(tensor, field)
    listed, rest = divmod(len(values), 2 if kind in _PARTS else 1)
    if rest or listed > head.count:
        raise InputError(str(head), expected=f"{head.count} values", found=len(values) if rest else listed)
    if not listed:
        # values in another field would be ignored, and all values would be zero
        if other := [name for name in _ALL_FIELDS if len(getattr(tensor, name))]:
            raise InputError(str(head), expected=f"values in {field}", found=f"values in {', '.join(other)}")
        return np.empty(0, head.dtype)
    if kind in _PARTS:
        return collected(values, _PARTS[kind]).view(head.dtype)
    if field == "float8_val":
        return np.frombuffer(values, head.dtype)
    if field in ("int_val", "half_val"):
        return narrowed(head, collected(values, np.int32), bits=field == "half_val")
    if kind in _FIXED and (content := _fixed(tensor, _FIXED[kind], listed * head.dtype.itemsize)):
        return np.frombuffer(content, head.dtype)
    return collected(values, head.dtype)


def narrowed(head: TensorHeader, wide: np.ndarray, *, bits: bool = False) -> np.ndarray:
    """Convert values, or their `bits`, from wider integers to the header's dtype.

    Raises InputError if a value is out of range.
    """
    # `names` are the names of fields, which only quantized dtypes have
    kind = np.dtype(np.uint16) if bits else head.dtype[0] if head.dtype.names else head.dtype
    limits = ml_dtypes.iinfo(kind)
    if wide.size and not (limits.min <= wide.min() and wide.max() <= limits.max):
        found = f"{wide.min()} to {wide.max()}"
        raise InputError(str(head), expected=f"values from {limits.min} to {limits.max}", found=found)
    narrow = wide.astype(kind)
    return narrow if kind == head.dtype else narrow.view(head.dtype)
