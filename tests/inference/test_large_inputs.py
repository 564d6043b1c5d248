"""Large inputs, which TensorFlow is given in memory that goes back to the system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from paramsync.graphs.capturing import capture
from paramsync.inference.execute import called
from paramsync.inference.resident import Resident
from paramsync.version import Version

KINDS = [np.float32, np.float16, np.int64, np.uint8, np.bool_, np.complex64, ml_dtypes.bfloat16]


def same(dtype: Any) -> Resident:
    """Answers what it is asked with."""

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.as_dtype(dtype), name="x")])
        def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": tf.identity(x)}

    return made(Model())


def made(model: tf.Module) -> Resident:
    graph = capture(model).graph
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
    resident = same(dtype)
    for array in (unaligned(values), values[:, ::2], values[::-1], values.T, values.astype(values.dtype)):
        answer = called(resident, "serving_default", {"x": array})
        np.testing.assert_array_equal(answer["y"], array)


def mapped() -> int:
    """Bytes of memory that this process has for itself."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("RssAnon")]
    return 1024 * int(line.split()[1])


def test_what_a_large_input_took_is_free_once_it_was_computed() -> None:
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": tf.reduce_max(x)}

    resident = made(Model())
    content = bytes(3) + bytes(64 << 20)
    arrays = [np.frombuffer(content[:end], np.uint8)[3:].view(np.float32) for end in [(64 << 20) + 3] * 3]
    before = mapped()
    for array in arrays:
        assert called(resident, "serving_default", {"x": array})["y"] == 0
    assert mapped() - before < 32 << 20
