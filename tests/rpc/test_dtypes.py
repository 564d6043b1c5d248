"""Every dtype that TensorFlow can save, both ways, bit by bit; what it cannot save is refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from paramsync import dtypes
from paramsync.checkpoint.reader import Bundle
from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import index_file
from tests.support import rewritten

REFERENCES = 100  # numbers above are of references to variables, which never leave a graph
KNOWN = sorted(number for number in types_pb2.DataType.values() if 0 < number < REFERENCES)
OPAQUE = [20, dtypes.VARIANT]
DENSE = [number for number in KNOWN if number not in (*OPAQUE, dtypes.STRING)]
SHAPES = [(), (3, 5), (0, 7), (4099,)]


def every_bit(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
    """Every bit pattern may occur: NaNs of all kinds, and those bits of a byte that a smaller number leaves unused."""
    size = int(np.prod(shape)) * dtype.itemsize
    content = np.random.default_rng(size).integers(0, 2 if dtype.kind == "b" else 256, size, np.uint8)
    return content.view(dtype).reshape(shape)


def content(tensor: tf.Tensor) -> bytes:
    return bytes(tensor.numpy().tobytes())


def restored(prefix: Path, names: list[str], number: int) -> list[tf.Tensor]:
    """As TensorFlow does it."""
    kinds = [tf.as_dtype(number)] * len(names)
    tensors: list[tf.Tensor] = tf.raw_ops.RestoreV2(
        prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), dtypes=kinds
    )
    return tensors


def save(prefix: Path, tensors: dict[str, tf.Tensor]) -> None:
    """As TensorFlow does it."""
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )


@pytest.mark.parametrize("number", DENSE, ids=dtypes.name)
def test_the_numpy_dtype_is_tensorflows(number: int) -> None:
    dtype = dtypes.to_numpy(number)
    assert dtype == np.dtype(tf.as_dtype(number).as_numpy_dtype)
    assert dtype is not None
    assert dtypes.from_numpy(dtype) == number
    assert tf.constant(np.zeros(2, dtype)).dtype == tf.as_dtype(number)


@pytest.mark.parametrize("number", DENSE, ids=dtypes.name)
def test_tensorflow_reads_what_we_write_and_we_read_what_it_writes(tmp_path: Path, number: int) -> None:
    dtype = dtypes.to_numpy(number)
    assert dtype is not None
    tensors = {str(shape): every_bit(dtype, shape) for shape in SHAPES}
    rewritten.write(tmp_path / "ours", tensors)
    names = sorted(tensors)
    theirs = dict(zip(names, restored(tmp_path / "ours", names, number), strict=True))
    for name, array in tensors.items():
        assert (theirs[name].dtype, tuple(theirs[name].shape)) == (tf.as_dtype(number), array.shape)
        assert content(theirs[name]) == array.tobytes()

    save(tmp_path / "theirs", theirs)
    read = Bundle.open(tmp_path / "theirs")
    read.verify(read.entries)
    for name, array in tensors.items():
        assert read.entries[name].dtype == number
        assert (read.array(name).dtype, read.array(name).shape) == (dtype, array.shape)
        assert read.array(name).tobytes() == array.tobytes()


@pytest.mark.parametrize("number", [*OPAQUE, 0, 34, 101], ids=dtypes.name)
def test_a_dtype_that_numpy_lacks_is_listed_and_refused_by_name_when_asked_for(tmp_path: Path, number: int) -> None:
    rewritten.write(tmp_path / "ours", {"odd": np.ones(3), "plain": np.ones(3)})
    found = index.read(index_file(tmp_path / "ours"))
    content = index_file(tmp_path / "ours").read_bytes()
    entries = dict(found.entries) | {"odd": dataclasses.replace(found.entries["odd"], dtype=number)}
    content = index.encode(dataclasses.replace(found, entries=entries))
    index_file(tmp_path / "ours").write_bytes(content)
    read = Bundle.open(tmp_path / "ours")
    assert set(read.entries) == {"odd", "plain"}
    assert read.array("plain").tolist() == [1, 1, 1]
    with pytest.raises(CorruptCheckpointError, match=f"'odd' of {dtypes.name(number)}"):
        read.array("odd")


# Variants -------------------------------------------------------------------------------------------------------------


def variants(directory: Path) -> Path:
    """A list of tensors, the state of an iterator over data, and a parameter."""
    iterator = iter(tf.data.Dataset.range(100).shuffle(10).batch(2))
    next(iterator)
    items = tf.raw_ops.TensorListFromTensor(tensor=tf.ones((3, 2)), element_shape=[2])
    save(directory / "list", {"list": items, "w": tf.ones(3)})
    return Path(tf.train.Checkpoint(iterator=iterator, w=tf.Variable(1.0)).write(str(directory / "iterator")))


def test_variants_are_verified_and_refused_by_name_when_asked_for(tmp_path: Path) -> None:
    for prefix in (variants(tmp_path), tmp_path / "list"):
        read = Bundle.open(prefix)
        (name,) = [name for name, entry in read.entries.items() if entry.dtype == dtypes.VARIANT]
        read.verify(read.entries)
        with pytest.raises(CorruptCheckpointError, match=f"'{name}' of variant"):
            read.array(name)
