"""Checkpoints are read: what TensorFlow writes bit by bit, mapped where it lies or copied to aligned memory."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.checkpoint.reader import Bundle
from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError, ParameterError
from tests.support.arrays import NUMERIC, any_bits, strings
from tests.support.checkpoints import assert_same, resident, write


def every_dtype() -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for name in NUMERIC:
        tensors[f"{name}/matrix"] = any_bits(name, (7, 3))
        tensors[f"{name}/scalar"] = any_bits(name, ())
        tensors[f"{name}/empty"] = any_bits(name, (0, 5))
        tensors[f"{name}/large"] = any_bits(name, (5000,))
    tensors["string/matrix"] = strings(b"a", b"", b"\0\xff\0", b"x" * 300).reshape(2, 2)
    tensors["string/scalar"] = strings(b"graph\0").reshape(())
    tensors["string/empty"] = strings().reshape(3, 0)
    tensors["name/with/../dots and spaces/\u00e9"] = any_bits("float32", (1,))
    return tensors


def save(prefix: Path, tensors: dict[str, Array], slices: str = "") -> None:
    """As TensorFlow does it."""
    values = [
        tf.constant(
            array.tolist() if array.dtype == object else array,
            shape=array.shape,
            dtype=tf.string if array.dtype == object else None,
        )
        for array in tensors.values()
    ]
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=list(tensors), shape_and_slices=[slices] * len(values), tensors=values
    )


# What TensorFlow writes -----------------------------------------------------------------------------------------------


def test_every_dtype_tensorflow_writes_is_read_bit_by_bit(tmp_path: Path) -> None:
    tensors = every_dtype()
    save(tmp_path / "theirs", tensors)
    read = Bundle.open(tmp_path / "theirs")
    assert set(read.entries) == set(tensors)
    read.verify(read.entries)
    for name, array in tensors.items():
        assert_same(read.array(name), array)


def test_what_tensorflow_packs_tightly_is_read_where_it_lies(tmp_path: Path) -> None:
    save(tmp_path / "theirs", {"a": any_bits("int8", (3,)), "b": any_bits("float64", (9,))})
    read = Bundle.open(tmp_path / "theirs")
    array = read.array("b")
    assert read.entries["b"].offset == 3
    assert not array.flags.aligned
    assert not array.flags.owndata
    assert_same(array, any_bits("float64", (9,)))


def test_an_index_of_many_blocks_is_read(tmp_path: Path) -> None:
    tensors: dict[str, Array] = {f"layer/{number}/kernel": np.array(number, np.int32) for number in range(20_000)}
    save(tmp_path / "theirs", tensors)
    read = Bundle.open(tmp_path / "theirs")
    assert read.entries.keys() == tensors.keys()
    assert all(read.array(name) == array for name, array in tensors.items())


def test_several_shards_are_read(tmp_path: Path) -> None:
    save(tmp_path / "one", {"a": any_bits("float32", (5,))})
    save(tmp_path / "two", {"b": any_bits("int64", (3, 2)), "c": strings(b"c")})
    prefixes = [str(tmp_path / "one"), str(tmp_path / "two")]
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=str(tmp_path / "both"))
    assert (tmp_path / "both.data-00001-of-00002").exists()
    read = Bundle.open(tmp_path / "both")
    read.verify(read.entries)
    assert_same(read.array("a"), any_bits("float32", (5,)))
    assert_same(read.array("b"), any_bits("int64", (3, 2)))
    assert_same(read.array("c"), strings(b"c"))


def test_a_checkpoint_of_a_v1_saver_is_read(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        kernel = tf.compat.v1.get_variable("dense/kernel", initializer=any_bits("int32", (4, 3)))
        session.run(kernel.initializer)
        prefix = tf.compat.v1.train.Saver([kernel]).save(session, str(tmp_path / "model"), global_step=12)
    read = Bundle.open(Path(prefix))
    assert list(read.entries) == ["dense/kernel"]
    read.verify(["dense/kernel"])
    assert_same(read.array("dense/kernel"), any_bits("int32", (4, 3)))


def save_in_parts(prefix: Path, array: Array) -> None:
    """As TensorFlow does it for a variable partitioned by rows."""
    half = len(array) // 2
    columns = f"0,{array.shape[1]}"
    places = [f"0,{half}:{columns}", f"{half},{len(array) - half}:{columns}"]
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=["kernel", "kernel"],
        shape_and_slices=[f"{array.shape[0]} {array.shape[1]} {place}" for place in places],
        tensors=[tf.constant(array[:half]), tf.constant(array[half:])],
    )


def test_a_partitioned_variable_is_put_together_and_each_part_is_verified(tmp_path: Path) -> None:
    expected = any_bits("int32", (5, 3))
    save_in_parts(tmp_path / "theirs", expected)
    read = Bundle.open(tmp_path / "theirs")
    read.verify(["kernel"])
    assert_same(read.array("kernel"), expected)
    file = tmp_path / "theirs.data-00000-of-00001"
    for at in (0, expected.nbytes - 1):
        content = bytearray(file.read_bytes())
        content[at] ^= 1
        file.write_bytes(content)
        with pytest.raises(CorruptCheckpointError, match="of 'kernel', found 0x"):
            Bundle.open(tmp_path / "theirs").verify(["kernel"])
        content[at] ^= 1
        file.write_bytes(content)


def test_values_of_what_tensorflow_packs_tightly_are_looked_at_too(tmp_path: Path) -> None:
    save(tmp_path / "theirs", {"a": any_bits("int8", (3,)), "b": np.full(9, np.inf)})
    with pytest.raises(ParameterError, match="'b', found NaN or infinity"):
        Bundle.open(tmp_path / "theirs").verify(["a", "b"], finite=True)


# What is mapped -------------------------------------------------------------------------------------------------------


def test_arrays_are_the_mapping_itself(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": any_bits("float32", (5, 4)), "b": any_bits("bfloat16", (5000,))})
    read = Bundle.open(tmp_path / "ckpt-1")
    for name, alignment in (("a", 64), ("b", 4096)):
        assert not read.array(name).flags.owndata
        assert read.array(name).ctypes.data % alignment == 0
        assert np.shares_memory(read.array(name), read.array(name))


def test_an_array_outlives_its_bundle_and_its_files(tmp_path: Path) -> None:
    expected = any_bits("float64", (100_000,))
    write(tmp_path / "ckpt-1", {"a": expected})
    array = Bundle.open(tmp_path / "ckpt-1").array("a")
    for file in tmp_path.iterdir():
        file.unlink()
    gc.collect()
    assert_same(array, expected)


def test_arrays_can_be_exported_and_writing_to_them_changes_no_file(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": np.ones(5000, np.float32)})
    before = (tmp_path / "ckpt-1.data-00000-of-00001").read_bytes()
    array = Bundle.open(tmp_path / "ckpt-1").array("a")
    array.view(np.float32).__dlpack__()
    array[:] = 2
    assert (tmp_path / "ckpt-1.data-00000-of-00001").read_bytes() == before
    assert Bundle.open(tmp_path / "ckpt-1").array("a")[0] == 1


def test_a_shard_without_bytes_is_read(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": np.zeros((0, 3), np.float32)})
    assert (tmp_path / "ckpt-1.data-00000-of-00001").stat().st_size == 0
    read = Bundle.open(tmp_path / "ckpt-1")
    read.verify(["a"], finite=True)
    read.prefault(["a"])
    assert read.array("a").shape == (0, 3)


def test_opening_reads_no_data(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": any_bits("float32", (500_000,)), "b": any_bits("int8", (70,))})
    read = Bundle.open(tmp_path / "ckpt-1")
    arrays = [read.array(name) for name in read.entries]
    assert resident(tmp_path) == 0
    del arrays


def test_prefaulting_brings_what_is_named_into_the_page_table(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": any_bits("int8", (1 << 20,)), "b": any_bits("int8", (5 << 20,))})
    read = Bundle.open(tmp_path / "ckpt-1")
    read.prefault(["b"])
    assert resident(tmp_path) >= 5 << 20
    read.prefault(["a", "b"])
    assert resident(tmp_path) == 6 << 20


def test_verifying_brings_everything_into_the_page_table(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": any_bits("int8", (1 << 20,)), "b": any_bits("int8", (9 << 20,))})
    read = Bundle.open(tmp_path / "ckpt-1")
    read.verify(["a", "b"])
    assert resident(tmp_path) == 10 << 20


# What is copied -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True], ids=["aligned", "packed"])
def test_every_dtype_is_copied_bit_by_bit_to_aligned_memory(tmp_path: Path, packed: bool) -> None:
    tensors = every_dtype()
    (save if packed else write)(tmp_path / "ckpt-1", tensors)
    read = Bundle.open(tmp_path / "ckpt-1", mapped=False)
    read.verify(read.entries)
    for name, array in tensors.items():
        assert_same(read.array(name), array)
        assert array.dtype == object or not array.size or read.array(name).ctypes.data % 64 == 0
    assert resident(tmp_path) == 0


def test_what_was_copied_is_copied_once_and_shared(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": any_bits("int8", (100,))})
    read = Bundle.open(tmp_path / "ckpt-1", mapped=False)
    assert np.shares_memory(read.array("a"), read.array("a"))


def test_a_file_cut_after_its_tensors_were_copied_does_no_harm(tmp_path: Path) -> None:
    expected = any_bits("int8", (100_000,))
    write(tmp_path / "ckpt-1", {"a": expected, "b": any_bits("int8", (100_000,))})
    read = Bundle.open(tmp_path / "ckpt-1", mapped=False)
    read.verify(["a"])
    os.truncate(tmp_path / "ckpt-1.data-00000-of-00001", 150_000)
    read.verify(["a"])
    assert_same(read.array("a"), expected)
    for ask in (read.array, lambda name: read.verify([name]), lambda name: read.prefault([name])):
        with pytest.raises(CorruptCheckpointError, match="expected 100000 bytes at 102400"):
            ask("b")
