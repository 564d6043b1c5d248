"""Partitioned variables of checkpoints: saved by TensorFlow in any parts, and read by us."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from paramsync.checkpoint.reader import Bundle
from paramsync.dtypes import Array


def save(prefix: Path, array: Array, parts: list[str], name: str = "kernel") -> None:
    """Save parts of a variable as TensorFlow does. A part is start,length for each dimension, or - for a whole one."""
    shape = " ".join(map(str, array.shape))
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=[name] * len(parts),
        shape_and_slices=[f"{shape} {part}" for part in parts],
        tensors=[tf.constant(array[cut(part)]) for part in parts],
    )


def cut(part: str) -> tuple[slice, ...]:
    if part == "-" * len(part):
        return (slice(None),)
    pairs = [(0, 1 << 62) if one == "-" else tuple(map(int, one.split(","))) for one in part.split(":")]
    return tuple(slice(start, start + length) for start, length in pairs)


def bits(*shape: int) -> Array:
    return np.random.default_rng(0).integers(0, 1 << 32, shape, np.uint32)


def restore(prefix: Path, name: str = "kernel") -> Array:
    read = Bundle.open(prefix)
    read.verify([name])
    return read.array(name)
