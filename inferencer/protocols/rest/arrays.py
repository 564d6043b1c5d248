"""JSON's values to arrays of the dtype a signature says, and back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from paramsync.errors import InputError
from paramsync.graphs.specs import TensorSpec

from .bodies import Body, kind
from .packed import B64, Long, RaggedError, flat, is_b64, of_leaves

Array = np.ndarray[Any, Any]

_BYTES = "_bytes"  # ends the names of outputs whose strings are not text
_SPACE = b" \t\n\v\f\r"
_DIGITS = 5  # are enough for any number of two bytes or one
_STEP = 1 << 18  # characters of base64 that are decoded in one go


def read(name: str, value: Any, spec: TensorSpec, body: Body) -> Array:
    """Numbers, booleans or strings in lists of one shape. Raises InputError, NotImplementedError."""
    return _array(f"input {name!r}", value, spec, body)


def _array(what: str, value: Any, spec: TensorSpec, body: Body) -> Array:
    if isinstance(value, np.ndarray):
        return _of(what, value, spec, body)
    if isinstance(value, Long):
        return _of_parts(what, value, spec, body)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Long):
        return _array(what, value[0], spec, body)[np.newaxis]
    try:
        shape, leaves = flat(value)
    except RaggedError as error:
        raise InputError(what, expected=error.expected, found=error.found) from error
    array = of_leaves(leaves)
    return (_of_strange(what, leaves, spec) if array is None else _of(what, array, spec, body)).reshape(shape)


def _of_parts(what: str, value: Long, spec: TensorSpec, body: Body) -> Array:
    whole: Array | None = None
    count, at = len(value), 0
    for part in value.taken():
        array = _array(what, part, spec, body)
        if whole is None:
            whole = np.empty((count, *array.shape[1:]), array.dtype)
        if array.shape[1:] != whole.shape[1:]:
            found = " and ".join(str(list(one.shape[1:])) for one in (whole, array))
            raise InputError(what, expected="lists of one shape", found=f"rows of {found}")
        whole[at : at + len(array)] = array
        at += len(array)
    return np.empty(0, _dtype(what, spec)) if whole is None else whole


def _of(what: str, array: Array, spec: TensorSpec, body: Body) -> Array:
    """The same in the dtype that it should have."""
    if spec.dtype == "string":
        if array.size and array.dtype.kind != "O":
            string(what, array.reshape(-1)[0].item())  # which is none
        strings = np.empty(array.size, object)
        strings[:] = [string(what, one) for one in array.reshape(-1).tolist()]
        return strings.reshape(array.shape)
    dtype = _dtype(what, spec)
    wanted = "b" if dtype.kind == "b" else "iu" if dtype.kind in "iu" else "iuf"
    if array.size and array.dtype.kind not in wanted:
        raise InputError(what, expected=spec, found=_strange(array))
    if dtype.kind == "b":
        return array.astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
            raise _beyond(what, spec)
        return array.astype(dtype)
    wide = array.astype(np.float64, copy=False)
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    if np.isinf(narrow).any() and (not body.infinities or np.isinf(narrow).sum() > np.isinf(wide).sum()):
        raise _beyond(what, spec)
    return narrow


def _strange(array: Array) -> str:
    if array.dtype.kind != "f":
        return kind(array.reshape(-1)[:1].tolist()[0])
    broken = array[np.trunc(array) != array]
    return f"{float(broken[0] if broken.size else array.reshape(-1)[0])!r}, a number with a fraction"


def _of_strange(what: str, leaves: Sequence[Any], spec: TensorSpec) -> Array:
    """Of what is no array of any one kind. Raises InputError; whole numbers may be larger than any that dtypes have."""
    if spec.dtype == "string":
        for one in leaves:
            string(what, one)
    dtype = _dtype(what, spec)
    wanted = {bool} if dtype.kind == "b" else {int} if dtype.kind in "iu" else {int, float}
    if strange := [one for one in leaves if type(one) not in wanted][:1]:
        raise InputError(what, expected=spec, found=kind(strange[0]))
    if dtype.kind in "iu":
        raise _beyond(what, spec)
    try:
        with np.errstate(over="ignore"):
            array = np.array(leaves, np.float64).astype(dtype)
    except OverflowError as error:
        raise _beyond(what, spec) from error
    if np.isinf(array).any():
        raise _beyond(what, spec)
    return array


def _beyond(what: str, spec: TensorSpec) -> InputError:
    return InputError(what, expected=f"numbers that {spec.dtype} has", found="one beyond them")


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
        text = value[B64].encode("ascii").translate(None, _SPACE)  # line breaks, as in TensorFlow Serving
        text += b"=" * (-len(text) % 4)
        return b"".join(base64.b64decode(text[at : at + _STEP], validate=True) for at in range(0, len(text), _STEP))
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
    if array.dtype.kind == "f":
        return array.astype("S32").astype(np.float64).tolist()  # 0.2, not 0.20000000298023224 nor 0.199951171875
    if array.dtype.name.startswith(("bfloat16", "float8", "float6", "float4")):
        return _shortest(array).tolist()
    raise InputError(f"output {name!r}", expected="a dtype that JSON has; use gRPC", found=array.dtype)


def _shortest(array: Array) -> Array:
    """Each number by the fewest digits that say which one of its dtype it is."""
    with np.errstate(invalid="ignore"):  # of some that are no numbers
        exact = np.asarray(array, np.float64)
    found = exact.copy()
    left = np.isfinite(exact)
    for digits in range(1, _DIGITS + 1):
        short = np.array([float(f"{one:.{digits}g}") for one in exact[left].tolist()], np.float64)
        fits = short.astype(array.dtype).astype(np.float64) == exact[left]
        at = np.flatnonzero(left)[fits]
        found.reshape(-1)[at] = short[fits]
        left.reshape(-1)[at] = False
    return found


def _told(value: bytes, *, as_bytes: bool) -> Any:
    if not as_bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass  # as text it would not be what it is
    return {B64: base64.b64encode(value).decode()}
