"""Makes up inputs for trial calls, and tells whether two results differ by more than rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_MOST = 1 << 22  # the most elements of a made-up tensor
_WORDS = np.array([b"", b"a", b"bc", b"0", b"1"], object)


def made_up(dtype: tf.DType, shape: Sequence[int]) -> tf.Tensor:
    """Return a tensor with varied values, the same at every call. Integers are 0 or 1: they may be indices of a table.

    Raises ValueError for a shape that is too large.
    """
    if np.prod(shape, dtype=float) > _MOST:
        raise ValueError(f"{dtype.name} of shape {list(shape)} is too large to be made up")
    random = np.random.default_rng(0)
    if dtype == tf.string:
        return tf.constant(random.choice(_WORDS, shape), tf.string)
    if dtype.is_integer or dtype.is_bool:
        return tf.cast(random.integers(0, 2, shape), dtype)
    return tf.cast(random.random(shape), dtype)


def difference(found: Any, expected: Any, rounding: float) -> str:
    """Describe how two arrays of one dtype differ; "" if they agree.

    Floats may differ by `rounding`, relative to the largest expected value. All other values must be equal.
    """
    if found.shape != expected.shape or found.dtype.kind not in "fcV":  # bfloat16 is of kind V
        return "" if np.array_equal(found, expected) else "in value"
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    ours, theirs = np.asarray(found).astype(wide), np.asarray(expected).astype(wide)
    scale = _largest(theirs)
    if np.allclose(ours, theirs, rtol=rounding, atol=rounding * scale, equal_nan=True):
        return ""
    return f"by up to {_largest(ours - theirs):.3g} of {scale:.3g}"


def _largest(array: Any) -> float:
    return float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array)))
