"""Every dtype that TensorFlow can save, in checkpoints and on the wire, both ways, bit by bit."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2, types_pb2

from paramsync import dtypes
from paramsync.checkpoint.reader import Bundle
from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError, InputError
from paramsync.rpc import tensor_proto
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import index_file
from paramsync.v1 import serving_pb2
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


FLOAT, STRING, INT8, COMPLEX64, BOOL, QINT8, UINT16, HALF, FLOAT8 = 1, 7, 6, 8, 10, 11, 17, 19, 24


def tensor(dtype: int = FLOAT, shape: tuple[int, ...] = (), **fields: Any) -> serving_pb2.Tensor:
    made = serving_pb2.Tensor(dtype=dtype, **fields)
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    return made


def array_of(one: Any) -> np.ndarray:
    return tensor_proto.to_arrays({"x": one}, "input")["x"]


@pytest.mark.parametrize(
    "dtype",
    [tf.float32, tf.int64, tf.bool, tf.complex64, tf.bfloat16, tf.qint8, tf.dtypes.experimental.float8_e5m2],
    ids=lambda dtype: dtype.name,
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_what_we_write_is_what_tensorflow_and_we_read(dtype: tf.DType, shape: tuple[int, ...]) -> None:
    values = np.ones(shape, dtype.as_numpy_dtype)
    ours = tensor_proto.from_array(values)
    theirs = tensor_pb2.TensorProto.FromString(ours.SerializeToString())
    for found in (array_of(ours), array_of(theirs), tf.make_ndarray(theirs)):
        assert (found.dtype, found.tolist()) == (values.dtype, values.tolist())


def forms(dtype: tf.DType) -> dict[str, dict[str, Any]]:
    """Return fields of messages by form. `one` and `two` fill all fields, so that each dtype finds its own field."""
    ones: dict[str, Any] = {
        "half_val": [15360],
        "float_val": [1.5],
        "double_val": [1.5],
        "int_val": [1],
        "int64_val": [1 << 40],
    }
    more: dict[str, Any] = {
        "bool_val": [True],
        "uint32_val": [1 << 31],
        "uint64_val": [1 << 63],
        "string_val": [b"a\0"],
    }
    fields = {**ones, **more, "scomplex_val": [1, 2], "dcomplex_val": [1, 2], "float8_val": b"\x31"}
    content = b"\x01\x00\x02\x00abc" if dtype == tf.string else b"\x01" * 4 * dtype.size
    return {
        "none": {},
        "one": fields,
        "two": {name: values * 2 for name, values in fields.items()},
        "content": {"tensor_content": content},
    }


@pytest.mark.parametrize("number", [one for one in range(1, 33) if one not in (20, 21)])
def test_every_form_of_every_dtype_is_what_tensorflow_reads(number: int) -> None:
    dtype = tf.as_dtype(number)
    for form, fields in forms(dtype).items():
        for shape in [(), (1,), (4,), (2, 2), (0,), (3, 0)] if form != "content" else [(4,), (2, 2), (1, 4, 1)]:
            if form in ("one", "two") and np.prod(shape) < {"one": 1, "two": 2}[form]:
                continue  # TensorFlow leaves out what is too much
            ours = tensor(number, shape, **fields)
            theirs = tf.io.parse_tensor(ours.SerializeToString(), dtype)
            found = array_of(ours)
            plain = found.view(found.dtype[0]) if found.dtype.names else found
            expected = np.asarray(theirs.numpy(), None if dtype != tf.string else object)
            assert (found.shape, plain.tolist()) == (shape, expected.tolist()), (dtype, form, shape)
            assert tf.as_dtype(found.dtype) == dtype


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (tensor(0), "input 'x', dtype: expected a dtype of numbers, booleans or strings, found dtype 0"),
        (tensor(20), "found resource"),
        (tensor(99), "found dtype 99"),
        (tensor(shape=(-1, 2), float_val=[1]), "input 'x', shape: expected dimensions of 0 or more, found [-1, 2]"),
        (tensor(shape=(1,) * 40, float_val=[1]), "expected at most 32 dimensions, found 40"),
        (tensor(shape=(1 << 40, 1 << 40, 0)), "expected fewer elements"),
        (tensor(shape=(0, 1 << 12, 1 << 12)), "expected fewer elements, found [0, 4096, 4096]"),
        (tensor(shape=(0, 1 << 61)), "expected fewer elements, found [0, 2305843009213693952]"),
        (
            tensor(shape=(1 << 40,), float_val=[1]),
            f"inputs: expected at most {tensor_proto.MAX_BYTES} bytes of repeated values, found {1 << 42}",
        ),
        (tensor(STRING, (1 << 40,), string_val=[b"a"]), "expected at most"),
        (tensor(shape=(1 << 40,)), f"{tensor_proto.MAX_BYTES} bytes of repeated values, found {1 << 42} in"),
        (tensor(STRING, (1 << 40,)), "bytes of repeated values"),
        (tensor(shape=(2,), float_val=[1, 2, 3]), "expected 2 values, found 3"),
        (tensor(shape=(0,), float_val=[1]), "expected 0 values, found 1"),
        (
            tensor(shape=(2,), int_val=[1, 2]),
            "input 'x' float32 [2]: expected values in float_val, found values in int",
        ),
        (tensor(COMPLEX64, (2,), scomplex_val=[1, 2, 3]), "input 'x' complex64 [2]: expected 2 values, found 3"),
        (tensor(shape=(2, 2), tensor_content=b"1234"), "expected 16 bytes of tensor_content, found 4"),
        (tensor(shape=(0,), tensor_content=b"1234"), "expected 0 bytes of tensor_content, found 4"),
        (tensor(STRING, (1,), tensor_content=b"\x02a"), "expected 1 strings in tensor_content, after their lengths"),
        (tensor(STRING, (1,), tensor_content=b"\x80"), "found malformed lengths"),
        (tensor(STRING, (1 << 40,), tensor_content=b"\x01a"), "in tensor_content, after their lengths, found 2 bytes"),
        (tensor(INT8, (1,), int_val=[300]), "input 'x' int8 [1]: expected values from -128 to 127, found 300 to 300"),
        (tensor(UINT16, (1,), int_val=[-1]), "input 'x' uint16 [1]: expected values from 0 to 65535"),
        (tensor(QINT8, (1,), int_val=[200]), "expected values from -128 to 127"),
        (tensor(FLOAT8, (2,), float8_val=b"123"), "input 'x' float8_e5m2 [2]: expected 2 values, found 3"),
        (tensor(HALF, (1,), half_val=[1 << 16]), "input 'x' float16 [1]: expected values from 0 to 65535"),
    ],
)
def test_a_tensor_that_does_not_hold_what_it_says_is_refused(made: serving_pb2.Tensor, text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text)):
        array_of(made)


def test_what_repeated_values_may_take_is_for_all_inputs_together() -> None:
    half = tensor(shape=(tensor_proto.MAX_BYTES // 8,), float_val=[1.5])
    assert [one.nbytes for one in tensor_proto.to_arrays({"a": half, "b": half}, "input").values()] == [
        tensor_proto.MAX_BYTES // 2
    ] * 2
    with pytest.raises(InputError, match="bytes of repeated values, found 8 in input 'c' float32"):
        tensor_proto.to_arrays({"a": half, "b": half, "c": tensor(shape=(2,), float_val=[1])}, "input")
