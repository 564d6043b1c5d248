"""JSON's values to arrays of the dtype a signature says, and back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np

from inferencer.rest.bodies import Body, kind
from paramsync.errors import InputError
from paramsync.graphs.graph import TensorSpec

Array = np.ndarray[Any, Any]

B64 = "b64"
_BYTES = "_bytes"  # ends the names of outputs whose strings are not text
_ROWS = 256  # read at a time, so that other threads have their turn
_VALUES = 1 << 16  # and of these
_RANK = 32


def is_b64(value: Any) -> bool:
    """Whether it is the way in which JSON carries bytes."""
    return isinstance(value, dict) and value.keys() == {B64} and isinstance(value[B64], str)


def read(name: str, value: Any, spec: TensorSpec, body: Body) -> Array:
    """Numbers, booleans or strings in lists of one shape. Raises InputError, NotImplementedError."""
    what = f"input {name!r}"
    if not isinstance(value, list) or len(value) <= _ROWS:
        return _array(what, value, spec, body)
    some = _ROWS if isinstance(value[0], list) else _VALUES
    parts = [_array(what, value[at : at + some], spec, body) for at in range(0, len(value), some)]
    shapes = sorted({one.shape[1:] for one in parts})
    if len(shapes) > 1:
        found = " and ".join(str(list(one)) for one in shapes)
        raise InputError(what, expected="lists of one shape", found=f"rows of {found}")
    return np.concatenate(parts)


def _array(what: str, value: Any, spec: TensorSpec, body: Body) -> Array:
    shape, leaves = _flat(what, value)
    if spec.dtype == "string":
        array = np.empty(len(leaves), object)
        array[:] = [string(what, one) for one in leaves]
    else:
        some = range(0, max(1, len(leaves)), _VALUES)
        array = np.concatenate([_numbers(what, leaves[at : at + _VALUES], spec, body) for at in some])
    return array.reshape(shape)


def _flat(what: str, value: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The shape that lists in lists have, and what is in the innermost. Raises InputError where they have none."""
    shape: list[int] = []
    level = [value]
    while list in (kinds := _kinds(level)):
        lengths = {len(one) for one in level if isinstance(one, list)}
        if len(kinds) > 1 or len(lengths) > 1:
            raise InputError(what, expected="lists of one shape", found=f"ragged lists at level {len(shape) + 1}")
        if len(shape) == _RANK:
            raise InputError(what, expected=f"at most {_RANK} dimensions", found="more")
        shape += lengths
        level = level[0] if len(level) == 1 else list(chain.from_iterable(level))
    return tuple(shape), level


def _kinds(values: Sequence[Any]) -> set[type]:
    found: set[type] = set()
    for at in range(0, len(values), _VALUES):
        found.update(map(type, values[at : at + _VALUES]))
    return found


def _numbers(what: str, leaves: Sequence[Any], spec: TensorSpec, body: Body) -> Array:
    dtype = _dtype(what, spec)
    wanted = {bool} if dtype.kind == "b" else {int} if dtype.kind in "iu" else {int, float}
    if not wanted.issuperset(map(type, leaves)):
        strange = next(one for one in leaves if type(one) not in wanted)
        found = f"{strange!r}, a number with a fraction" if isinstance(strange, float) else kind(strange)
        raise InputError(what, expected=spec, found=found)
    try:
        if int not in wanted or float not in wanted:
            return np.array(leaves, dtype)
        wide = np.array(leaves, np.float64)
    except OverflowError as error:
        raise InputError(what, expected=f"numbers that {spec.dtype} has", found="one beyond them") from error
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    if np.isinf(narrow).any() and (not body.infinities or np.isinf(narrow).sum() > np.isinf(wide).sum()):
        raise InputError(what, expected=f"numbers that {spec.dtype} has", found="one beyond them")
    return narrow


def _dtype(what: str, spec: TensorSpec) -> np.dtype[Any]:
    try:
        dtype = np.dtype(getattr(ml_dtypes, spec.dtype, spec.dtype))
    except TypeError as error:  # a quantized one
        raise NotImplementedError(f"{what}: JSON has no {spec.dtype}; use gRPC") from error
    if dtype.kind == "c":
        raise NotImplementedError(f"{what}: JSON has no {spec.dtype}; use gRPC")
    return dtype


def string(what: str, value: Any) -> bytes:
    """Text, or the bytes of {"b64": ...}. Raises InputError."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InputError(what, expected="strings of UTF-8", found="half a surrogate pair") from error
    if not is_b64(value):
        raise InputError(what, expected=f'strings or {{"{B64}": "..."}}', found=kind(value))
    try:
        text = value[B64].encode("ascii")
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{what}, {B64}", expected="base64", found=repr(value[B64][:40])) from error


def listed(name: str, array: Array) -> Any:
    """The array as lists of what JSON has: numbers as short as their dtype allows. Raises InputError."""
    if array.dtype.kind == "O":
        flat = np.empty(array.size, object)
        flat[:] = [_told(one, as_bytes=name.endswith(_BYTES)) for one in array.reshape(-1).tolist()]
        return flat.reshape(array.shape).tolist()
    if array.dtype.kind in "iub" or array.dtype == np.float64:
        return array.tolist()
    if array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat16", "float8")):
        return np.asarray(array, np.float32).astype("S32").astype(np.float64).tolist()  # 0.2, not 0.20000000298023224
    raise InputError(f"output {name!r}", expected="a dtype that JSON has; use gRPC", found=array.dtype)


def _told(value: bytes, *, as_bytes: bool) -> Any:
    if not as_bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass  # as text it would not be what it is
    return {B64: base64.b64encode(value).decode()}
