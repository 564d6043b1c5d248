"""JSON's values as arrays of every dtype, and back."""

from __future__ import annotations

import base64
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from inferencer.protocols.json_arrays import is_small, read, to_lists, write_lists
from inferencer.protocols.json_reader import Body
from paramsync.errors import InputError
from paramsync.graphs.specs import TensorSpec


def as_array(value: Any, dtype: str) -> Any:
    body = Body(json.dumps({"x": value}).encode())
    return read("x", body.fields["x"], TensorSpec("x", dtype, None), body)


WHOLE = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers_are_taken_up_to_the_limits_of_their_dtype_and_no_further(dtype: str) -> None:
    limits = np.iinfo(dtype)
    array = as_array([[limits.min, limits.max]], dtype)
    assert (array.dtype, array.tolist()) == (np.dtype(dtype), [[limits.min, limits.max]])
    assert to_lists("x", array) == [[limits.min, limits.max]]
    for beyond in (limits.min - 1, limits.max + 1):
        with pytest.raises(InputError, match=f"expected numbers that {dtype} has"):
            as_array([1, beyond], dtype)
    with pytest.raises(InputError, match=r"found 1\.0, a number with a fraction"):
        as_array([1, 1.0], dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_numbers_with_a_fraction_come_back_as_short_as_they_went(dtype: str) -> None:
    array = as_array([0, 0.5, -1.25, 1024], dtype)
    assert array.dtype == np.dtype(getattr(ml_dtypes, dtype, dtype))
    assert to_lists("x", array) == [0.0, 0.5, -1.25, 1024.0]
    with pytest.raises(InputError, match=f"expected numbers that {dtype} has"):
        as_array([10**400], dtype)
    found = to_lists("x", as_array([float("nan"), float("inf"), float("-inf")], dtype))
    assert json.dumps(found) == "[NaN, Infinity, -Infinity]"


def test_float32_is_written_with_the_digits_it_has() -> None:
    assert to_lists("x", np.array([0.1, 1 / 3, 1e-45, 3.4028235e38], np.float32)) == [
        0.1,
        0.33333334,
        1e-45,
        3.4028235e38,
    ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_two_bytes_are_written_with_the_digits_they_need(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    assert to_lists("x", np.array([[0.1, 0.2], [0.5, -1e-3]]).astype(kind)) == [[0.1, 0.2], [0.5, -1e-3]]
    every = np.arange(1 << 16, dtype=np.uint16).view(kind)
    with np.errstate(invalid="ignore"):
        every = every[~np.isnan(every)]
    texts = [repr(one) for one in to_lists("x", every)]
    assert (np.array(texts, np.float64).astype(kind) == every).all()
    assert max(len(one.strip("-").partition("e")[0].replace(".", "").strip("0")) for one in texts) <= 5


def test_booleans_are_no_numbers_and_numbers_no_booleans() -> None:
    assert as_array([True, False], "bool").tolist() == [True, False]
    for value, dtype in (([1, 0], "bool"), ([True], "int32"), ([1.5, True], "float32")):
        with pytest.raises(InputError):
            as_array(value, dtype)


@pytest.mark.parametrize("value", [[], [[]], [[], []], [[[]], [[]]]])
def test_what_is_empty_has_a_shape_too(value: Any) -> None:
    for dtype in ("float32", "string", "int8"):
        assert as_array(value, dtype).shape == np.array(value).shape
        assert to_lists("x", as_array(value, dtype)) == value


def test_one_value_has_no_dimensions() -> None:
    assert (as_array(3, "int32").shape, as_array("a", "string").shape) == ((), ())
    assert to_lists("x", as_array("a", "string")) == "a"


def test_bytes_may_be_padded_or_not() -> None:
    assert as_array([{"b64": "YQ=="}, {"b64": "YQ"}, {"b64": ""}], "string").tolist() == [b"a", b"a", b""]


def test_base64_may_have_line_breaks_and_be_long() -> None:
    content = np.random.default_rng(0).bytes(1_000_001)
    texts = [base64.b64encode(content).decode(), base64.encodebytes(content).decode(), " Y W\r\n J j \t"]
    found = as_array([{"b64": text} for text in texts], "string").tolist()
    assert found == [content, content, b"abc"]
    for wrong in ("Y", "Y-J_", "YWJ=Yw==", "\u00e9AAA", base64.b64encode(content).decode() + "*AAA"):
        with pytest.raises(InputError, match="expected base64"):
            as_array([{"b64": wrong}], "string")


@pytest.mark.parametrize("dtype", ["complex64", "qint8", "complex128"])
def test_what_json_cannot_say_is_not_offered(dtype: str) -> None:
    with pytest.raises(NotImplementedError, match=f"JSON has no {dtype}; use gRPC"):
        as_array([1], dtype)
    with pytest.raises(InputError, match="a dtype that JSON has"):
        to_lists("x", np.zeros(1, np.complex64))


def test_many_rows_are_one_array_and_one_that_differs_is_noticed() -> None:
    rows = np.arange(30_000).reshape(10_000, 3)
    assert as_array(rows.tolist(), "int64").tolist() == rows.tolist()
    with pytest.raises(InputError, match="expected lists of one shape, found "):
        as_array([*rows.tolist(), *[[1, 2]] * 10_000], "int64")


@pytest.mark.parametrize("shape", [(5000, 0), (40, 300, 0), (3000, 1, 0), (5000, 2), (0, 7), (3,), ()])
def test_lists_without_a_value_are_written_in_pieces_too(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.int32)
    pieces = list(write_lists("y", array))
    assert json.loads(b"".join(pieces)) == array.tolist()
    assert max(piece.count(b",") for piece in pieces) < 2048
    assert is_small({"y": array}) == (json.dumps(array.tolist()).count("[") + array.size <= 1025)
