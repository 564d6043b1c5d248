"""Turns JSON values into arrays of a signature's dtype, and arrays into JSON, in steps of a few milliseconds."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from paramsync import dtypes
from paramsync.errors import InputError
from paramsync.graphs.specs import TensorSpec

from .json_reader import Body, kind

Array = np.ndarray[Any, Any]

B64 = "b64"
_BYTES = "_bytes"  # suffix of outputs whose strings are bytes, not text
_SPACE = b" \t\n\v\f\r"
_RANK = 32  # most dimensions of an input
_DIGITS = 5  # significant digits that are enough for any float of one or two bytes
_STEP = 1 << 18  # characters of base64 decoded in one step
_PART = 4096  # elements of a list turned into an array in one step
_VALUES = 1024  # values written in one step
_BEYOND_INTEGERS = 1 << 63  # a float at least this large may be a whole number that orjson cannot hold in 64 bits
_SMALL_STRINGS = 1 << 15  # bytes of strings in a small answer


def is_b64(value: Any) -> bool:
    """Whether the value is {"b64": "..."}, JSON's form of bytes."""
    return isinstance(value, dict) and value.keys() == {B64} and isinstance(value[B64], str)


# From JSON ------------------------------------------------------------------------------------------------------------


def read(name: str, value: Any, spec: TensorSpec, body: Body) -> Array:
    """Turn nested lists of numbers, booleans or strings into an array of the spec's dtype.

    Raises RequestError, or NotImplementedError for a dtype that JSON lacks.
    """
    what = f"input {name!r}"
    if isinstance(value, list) and len(value) > _PART:
        parts = (value[at : at + _PART] for at in range(0, len(value), _PART))
        return concatenate(what, (read(name, part, spec, body) for part in parts))
    shape, leaves = _flat(what, value)
    return _of_leaves(what, leaves, spec, body).reshape(shape)


def concatenate(what: str, arrays: Iterator[Array]) -> Array:
    """Concatenate arrays. Raises InputError if their rows have different shapes."""
    rows: list[Array] = []
    for array in arrays:
        rows.append(array)
        if array.shape[1:] != rows[0].shape[1:]:
            found = " and ".join(str(list(row.shape[1:])) for row in (rows[0], array))
            raise InputError(what, expected="lists of one shape", found=f"rows of {found}")
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


def _flat(what: str, value: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape of nested lists, and the innermost values. Raises InputError for ragged lists."""
    shape: list[int] = []
    level = [value]
    while list in (kinds := set(map(type, level))):
        lengths = {len(values) for values in level if type(values) is list}
        if len(kinds) > 1 or len(lengths) > 1:
            raise InputError(what, expected="lists of one shape", found=f"ragged lists at level {len(shape) + 1}")
        if len(shape) == _RANK:
            raise InputError(what, expected=f"at most {_RANK} dimensions", found="more")
        shape += lengths
        level = level[0] if len(level) == 1 else list(chain.from_iterable(level))
    return tuple(shape), level


def _of_leaves(what: str, leaves: Sequence[Any], spec: TensorSpec, body: Body) -> Array:
    if spec.dtype == "string":
        strings = np.empty(len(leaves), object)
        strings[:] = [string(what, leaf) for leaf in leaves]
        return strings
    dtype = _dtype(what, spec)
    kinds: set[type] = {bool} if dtype.kind == "b" else {int} if dtype.kind in "iu" else {int, float}
    if not kinds.issuperset(map(type, leaves)):
        wrong = next(leaf for leaf in leaves if type(leaf) not in kinds)
        if isinstance(wrong, float) and abs(wrong) >= _BEYOND_INTEGERS:
            raise _beyond(what, spec)
        found = f"{wrong!r}, a number with a fraction" if isinstance(wrong, float) else kind(wrong)
        raise InputError(what, expected=spec, found=found)
    try:
        if float not in kinds:
            return np.array(leaves, dtype)
        wide = np.array(leaves, np.float64)
    except OverflowError as error:
        raise _beyond(what, spec) from error
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    if np.isinf(narrow).any() and (not body.infinities or np.isinf(narrow).sum() > np.isinf(wide).sum()):
        raise _beyond(what, spec)
    return narrow


def _beyond(what: str, spec: TensorSpec) -> InputError:
    return InputError(what, expected=f"numbers that {spec.dtype} has", found="one beyond them")


def _dtype(what: str, spec: TensorSpec) -> np.dtype[Any]:
    dtype = dtypes.named(spec.dtype)
    if dtype is None or dtype.names or dtype.kind == "c":  # quantized dtypes have named fields
        raise NotImplementedError(f"{what}: JSON has no {spec.dtype}; use gRPC")
    return dtype


def string(what: str, value: Any) -> bytes:
    """Return a text, or the content of {"b64": ...}, as bytes. Raises InputError."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InputError(what, expected="strings of UTF-8", found="half a surrogate pair") from error
    if not is_b64(value):
        raise InputError(what, expected=f'strings or {{"{B64}": "..."}}', found=kind(value))
    try:
        text = value[B64].encode("ascii").translate(None, _SPACE)  # TensorFlow Serving takes line breaks too
        text += b"=" * (-len(text) % 4)
        return b"".join(base64.b64decode(text[at : at + _STEP], validate=True) for at in range(0, len(text), _STEP))
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{what}, {B64}", expected="base64", found=repr(value[B64][:40])) from error


# To JSON --------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def is_small(answer: Mapping[str, Array]) -> bool:
    """Whether an answer can be written as JSON within a few milliseconds."""
    arrays = answer.values()
    if sum(map(count_values, arrays)) > _VALUES:
        return False
    return sum(len(text) for array in arrays if array.dtype.kind == "O" for text in array.flat) <= _SMALL_STRINGS


def write_lists(name: str, array: Array) -> Iterator[bytes]:
    """Write an output as nested lists, in pieces. Raises InputError for a dtype that JSON lacks."""
    if not array.ndim or (count := count_values(array)) <= _VALUES:
        yield to_json(to_lists(name, array))
    elif count // len(array) > _VALUES:
        for at, row in enumerate(array):
            yield b", " if at else b"["
            yield from write_lists(name, row)
        yield b"]"
    else:
        yield from write_list(len(array), count, lambda first, end: to_lists(name, array[first:end]))


def write_list(count: int, size: int, piece: Callable[[int, int], list[Any]]) -> Iterator[bytes]:
    """Write a list of `count` elements with `size` values in total. `piece(first, end)` returns a range of elements."""
    step = max(1, count * _VALUES // max(1, size))
    yield b"["
    for at in range(0, count, step):
        yield (b", " if at else b"") + to_json(piece(at, at + step))[1:-1]
    yield b"]"


def count_values(array: Array) -> int:
    """Count the values and lists that an array takes in JSON. Even an array without values may take many lists."""
    return sum(math.prod(array.shape[: rank + 1]) for rank in range(array.ndim)) or 1


def to_lists(name: str, array: Array) -> Any:
    """Return the array as nested lists of JSON values. Numbers have the fewest digits that their dtype needs.

    Raises InputError for a dtype that JSON lacks.
    """
    if array.dtype.kind == "O":
        flat = np.empty(array.size, object)
        flat[:] = [_text(value, as_bytes=name.endswith(_BYTES)) for value in array.reshape(-1).tolist()]
        return flat.reshape(array.shape).tolist()
    if array.dtype.kind in "iub" or array.dtype == np.float64:
        return array.tolist()
    if array.dtype.kind == "f":
        return array.astype("S32").astype(np.float64).tolist()  # float32's 0.2 becomes 0.2, not 0.20000000298023224
    if array.dtype.name.startswith(("bfloat16", "float8", "float6", "float4")):
        return _shortest(array).tolist()
    raise InputError(f"output {name!r}", expected="a dtype that JSON has; use gRPC", found=array.dtype)


def _shortest(array: Array) -> Array:
    """Round each number to the shortest decimal that its dtype reads back as the same number."""
    with np.errstate(invalid="ignore"):  # for NaN
        exact = np.asarray(array, np.float64)
    shortest = exact.copy()
    left = np.isfinite(exact)
    for digits in range(1, _DIGITS + 1):
        short = np.array([float(f"{number:.{digits}g}") for number in exact[left].tolist()], np.float64)
        fits = short.astype(array.dtype).astype(np.float64) == exact[left]
        at = np.flatnonzero(left)[fits]
        shortest.reshape(-1)[at] = short[fits]
        left.reshape(-1)[at] = False
    return shortest


def _text(value: bytes, *, as_bytes: bool) -> Any:
    if not as_bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass  # not UTF-8: write it as base64
    return {B64: base64.b64encode(value).decode()}
