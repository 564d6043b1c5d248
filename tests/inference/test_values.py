"""Inputs as arrays and lists: converted if nothing is lost, and large arrays in memory that the system gets back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import InputError
from paramsync.graphs.capturing import capture
from paramsync.graphs.specs import Signature, TensorSpec
from paramsync.inference.execute import called
from paramsync.inference.resident import Resident, fitting
from paramsync.version import Version


def fit(value: Any, dtype: str) -> Any:
    """What becomes of it as the only input, of that dtype."""
    return fitting({"x": value}, Signature({"x": TensorSpec("x", dtype, None)}, {}))["x"]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([[0.1, 2.0]], "float32"),
        ([1, 2, 3], "float32"),
        ([1, 2, 3], "int32"),
        ([True, False], "float32"),
        ([0.1, float("nan"), float("inf")], "float32"),
        ([0.1], "bfloat16"),
        (np.array([0.1, 1e-30]), "float32"),
        (np.array([1.5], np.float32), "float64"),
        (np.array([1.5]), "complex64"),
        (np.array([1.5], np.float32), "float16"),
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
        ([300], "uint8"),
        (np.array([2**24 + 1]), "float32"),
        (np.array([1e300]), "float32"),
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


# Large inputs ----------------------------------------------------------------------------------------------------

KINDS = [np.float32, np.int64, np.bool_, np.complex64, ml_dtypes.bfloat16]


def resident_of(function: Any, spec: tf.TensorSpec) -> Resident:
    """A version that computes y of x by this function."""
    graph = capture(tf.function(lambda x: {"y": function(x)}, input_signature=[spec])).graph
    version = Version(number=1, step=1, prefix="c", graph=graph.digest, step_done_at=1.0, snapshot_at=1.0)
    return Resident(version, graph, ())


def unaligned(array: np.ndarray) -> np.ndarray:
    """As in a message: at an odd place, and not to be written to."""
    content = bytes(3) + array.tobytes()
    found = np.frombuffer(content, np.uint8)[3:].view(array.dtype).reshape(array.shape)
    assert found.ctypes.data % 64
    return found


@pytest.mark.parametrize("dtype", KINDS)
def test_a_large_input_is_what_it_was(dtype: Any) -> None:
    values = (np.arange(3 << 20) % 97).reshape(3, -1).astype(dtype)
    resident = resident_of(tf.identity, tf.TensorSpec([None, None], tf.as_dtype(dtype), name="x"))
    for array in (unaligned(values), values[:, ::2], values[::-1], values.T, values.astype(values.dtype)):
        answer = called(resident, "serving_default", {"x": array})
        np.testing.assert_array_equal(answer["y"], array)


def mapped() -> int:
    """Bytes of memory that this process has for itself."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("RssAnon")]
    return 1024 * int(line.split()[1])


def test_what_a_large_input_took_is_free_once_it_was_computed() -> None:
    resident = resident_of(tf.reduce_max, tf.TensorSpec([None], tf.float32, name="x"))
    content = bytes(3) + bytes(64 << 20)
    arrays = [np.frombuffer(content[:end], np.uint8)[3:].view(np.float32) for end in [(64 << 20) + 3] * 3]
    before = mapped()
    for array in arrays:
        assert called(resident, "serving_default", {"x": array})["y"] == 0
    assert mapped() - before < 32 << 20
