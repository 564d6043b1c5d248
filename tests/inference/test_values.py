"""Lists and numbers of other dtypes, where a program passes them to a model in process."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import InputError
from paramsync.graphs.specs import Signature, TensorSpec
from paramsync.inference.resident import fitting


def fit(value: Any, dtype: str) -> Any:
    """What becomes of it as the only input, of that dtype."""
    return fitting({"x": value}, Signature({"x": TensorSpec("x", dtype, None)}, {}))["x"]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([[0.1, 2.0]], "float32"),
        ([1, 2, 3], "float32"),
        ([1, 2, 3], "int32"),
        ([1, 2, 3], "uint8"),
        ([True, False], "float32"),
        ([0.1, float("nan"), float("inf")], "float32"),
        ([0.1], "bfloat16"),
        (np.array([0.1, 1e-30]), "float32"),
        (np.array([2**40]), "float64"),
        (np.array([1.5], np.float32), "float64"),
        (np.array([1.5]), "complex64"),
        (np.array([1.5], np.float32), "float16"),
        (np.array([3], np.uint64), "int8"),
        (2.5, "float32"),
    ],
)
def test_what_the_model_sees_no_difference_in_is_converted(value: Any, dtype: str) -> None:
    converted = fit(value, dtype)
    wanted = tf.as_dtype(dtype).as_numpy_dtype
    assert converted.dtype == wanted
    np.testing.assert_array_equal(converted, np.asarray(value).astype(wanted))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.5], "int32"),
        ([1.0], "int64"),
        ([300], "uint8"),
        ([-1], "uint32"),
        (np.array([2**24 + 1]), "float32"),
        (np.array([2**40]), "int32"),
        (np.array([1e300]), "float32"),
        (np.array([1e6]), "float16"),
        (np.array([1j]), "float32"),
        ([2], "bool"),
    ],
)
def test_what_would_change_is_refused_with_what_to_pass(value: Any, dtype: str) -> None:
    with pytest.raises(InputError, match=rf"^input 'x': expected {dtype} .*pass \.astype\('{dtype}'\)"):
        fit(value, dtype)


def test_rows_of_different_lengths_are_told() -> None:
    with pytest.raises(
        InputError, match=re.escape("input 'x': expected float32 of any shape, found rows of different")
    ):
        fit([[1.0], [1.0, 2.0]], "float32")


def test_what_fits_is_passed_on_without_a_copy() -> None:
    for value in (np.zeros(3, np.float32), tf.zeros(3), np.array(["a"], object)):
        assert fit(value, "string" if getattr(value.dtype, "kind", "") == "O" else "float32") is value
    assert fit(["a", b"b"], "string").tolist() == ["a", b"b"]


def test_numbers_of_a_dtype_of_ml_dtypes_are_converted_too() -> None:
    assert fit(np.array([1.5], ml_dtypes.bfloat16), "float32").tolist() == [1.5]


def test_an_input_that_nobody_knows_is_left_to_the_check_of_names() -> None:
    assert fitting({"y": [1.0]}, Signature({"x": TensorSpec("x", "float32", None)}, {})) == {"y": [1.0]}
