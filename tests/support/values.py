"""Arrays of every datatype that KServe's protocol has, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

VALUES: Mapping[str, np.ndarray[Any, Any]] = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 7, 255], np.uint8),
    "UINT16": np.array([0, 7, 65535], np.uint16),
    "UINT32": np.array([0, 7, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 7, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 0, 127], np.int8),
    "INT16": np.array([-(2**15), 0, 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), 0, 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 0, 2**63 - 1], np.int64),
    "FP16": np.array([-1.5, 0.0, 65504.0], np.float16),
    "BF16": np.array([-1.5, 0.0, 3e38], ml_dtypes.bfloat16),
    "FP32": np.array([-1.5, np.nan, np.inf], np.float32),
    "FP64": np.array([-1.5, np.nan, 1e300]),
    "BYTES": np.array([b"", b"\xff\x00", "\N{SNOWMAN}".encode()], object),
}
"""For each datatype, the values that are sent and come back. The input has the datatype's name in lower case."""
