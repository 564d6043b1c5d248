"""One checkpoint after another, written by CheckpointWriter and read again: by us and by TensorFlow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from paramsync.checkpoint.file_pool import FilePool
from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.writer import CheckpointWriter, Tensor, Written
from tests.support.checkpoints import assert_same

LARGE = 3 << 20  # elements of float32: several threads, several portions


class Checkpoints:
    """One checkpoint after another in a directory, each of which is read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spares = FilePool(path)
        self.writer = CheckpointWriter(self.spares)
        self.count = 0

    def write(self, tensors: Mapping[str, Tensor], unchanged: Collection[str] = ()) -> Written:
        self.count += 1
        prefix = self.path / f"ckpt-{self.count}"
        written = self.writer.write(prefix, tensors, unchanged)
        self.writer.remember(written)
        bundle = Bundle.open(prefix)
        bundle.verify(bundle.entries)
        reader = tf.train.load_checkpoint(str(prefix))
        assert set(bundle.entries) == set(tensors)
        for name, tensor in tensors.items():
            assert_same(bundle.array(name), np.asarray(tensor))
            assert_same(reader.get_tensor(name), np.asarray(tensor))
        return written

    def files(self, number: int) -> list[str]:
        return sorted(file.name for file in self.path.glob(f"ckpt-{number}.data-*"))


def write(prefix: Path, tensors: Mapping[str, Tensor]) -> Written:
    """Write one checkpoint, whatever was there before."""
    pool = FilePool(prefix.parent)
    try:
        return CheckpointWriter(pool).write(prefix, tensors)
    finally:
        pool.trim(keep=0)
        pool.close()
