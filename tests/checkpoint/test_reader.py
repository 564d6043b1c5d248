"""Checkpoints are read bit by bit, mapped where they lie or copied; forged, cut or changed ones are refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.checkpoint.reader import Bundle
from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError, ParameterError
from paramsync.tensorbundle import sstable
from paramsync.v1 import bundle_pb2
from tests.support.arrays import DTYPES, NUMERIC, any_bits, strings
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


def test_what_tensorflow_packs_tightly_is_read_where_it_lies(tmp_path: Path) -> None:
    save(tmp_path / "theirs", {"a": any_bits("int8", (3,)), "b": any_bits("float64", (9,))})
    read = Bundle.open(tmp_path / "theirs")
    array = read.array("b")
    assert read.entries["b"].offset == 3
    assert not array.flags.aligned
    assert not array.flags.owndata
    assert_same(array, any_bits("float64", (9,)))


def test_arrays_are_the_mapping_itself(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": any_bits("float32", (5, 4)), "b": any_bits("bfloat16", (5000,))})
    read = Bundle.open(tmp_path / "ckpt-1")
    for name, alignment in (("a", 64), ("b", 4096)):
        assert not read.array(name).flags.owndata
        assert read.array(name).ctypes.data % alignment == 0
        assert np.shares_memory(read.array(name), read.array(name))


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


def test_a_scrub_maps_no_page_and_finds_what_was_changed_or_cut(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": any_bits("int8", (3 << 20,)), "b": strings(b"text")})
    file = tmp_path / "ckpt-1.data-00000-of-00001"
    read = Bundle.open(tmp_path / "ckpt-1")
    assert list(read.scrub("a")) == [1 << 20] * 3
    assert list(read.scrub("b")) == []
    assert resident(tmp_path) == 0
    with file.open("r+b") as writer:
        writer.write(b"\x01")
    with pytest.raises(CorruptCheckpointError, match="checksum"):
        list(read.scrub("a"))
    os.truncate(file, 4096)
    with pytest.raises(CorruptCheckpointError, match="a file that was cut"):
        list(read.scrub("a"))


FLOATS = ["float16", "float32", "float64", "bfloat16", "complex64", "float8_e5m2", "float8_e4m3fn"]


def forge(prefix: Path, *, name: bytes = b"a", header: bundle_pb2.BundleHeader | None = None, **entry: object) -> None:
    """A checkpoint with one float32 [2, 3], whose index was changed by somebody who knows the format."""
    write(prefix, {"a": np.zeros((2, 3), np.float32)})
    (_, head), (_, value) = sstable.read(Path(f"{prefix}.index").read_bytes(), path=prefix)
    message = bundle_pb2.BundleEntry.FromString(value)
    for field in entry:
        message.ClearField(field)
    message.MergeFrom(bundle_pb2.BundleEntry(**entry))  # type: ignore[arg-type]
    records = [(b"", header.SerializeToString() if header else head), (name, message.SerializeToString())]
    Path(f"{prefix}.index").write_bytes(sstable.write(records))


def shape(*sizes: int, unknown_rank: bool = False) -> bundle_pb2.TensorShape:
    dims = [bundle_pb2.TensorShape.Dim(size=size) for size in sizes]
    return bundle_pb2.TensorShape(dim=dims, unknown_rank=unknown_rank)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        pytest.param({"offset": 1}, "24 bytes at 1 for 'a'.*a file of 24 bytes", id="ends past the file"),
        pytest.param({"offset": 1 << 62}, "found a file of 24 bytes", id="begins past the file"),
        pytest.param({"offset": -1}, "63 bits", id="negative offset"),
        pytest.param({"offset": (1 << 63) - 1}, "63 bits", id="offset and size overflow"),
        pytest.param({"size": -24}, "63 bits", id="negative size"),
        pytest.param(
            {"size": 20}, r"24 bytes for float32 \[2, 3\], found 20 bytes", id="size is not that of the shape"
        ),
        pytest.param({"size": (1 << 63) - 1}, "24 bytes for float32", id="huge size"),
        pytest.param({"shape": shape(1 << 32, 1 << 32)}, "can be addressed", id="shape overflows to 0"),
        pytest.param({"shape": shape(0, 1 << 62, 1 << 62), "size": 0}, "can be addressed", id="empty and huge"),
        pytest.param({"shape": shape(-2, -3)}, "known sizes", id="negative sizes"),
        pytest.param({"shape": shape(*[1] * 200)}, "at most 64", id="too many sizes"),
        pytest.param({"shape": shape(unknown_rank=True)}, "unknown rank", id="unknown rank"),
        pytest.param({"shard_id": 1}, "a shard below 1", id="shard that is not there"),
        pytest.param({"shard_id": -1}, "a shard below 1", id="negative shard"),
        pytest.param({"dtype": 7}, "'a'", id="strings that are none"),
        pytest.param({"dtype": 7, "shape": shape(1 << 40)}, "found 1099511627776", id="more strings than bytes"),
        pytest.param({"name": b"\xff"}, "UTF-8", id="name that is no text"),
        pytest.param({"name": b"\0a"}, "part", id="name with NUL first"),
        pytest.param({"header": bundle_pb2.BundleHeader()}, "1 to [0-9]+ shards", id="no shards"),
        pytest.param(
            {"header": bundle_pb2.BundleHeader(num_shards=1, endianness="BIG")}, "little-endian", id="big-endian"
        ),
        pytest.param(
            {"header": bundle_pb2.BundleHeader(num_shards=1, version={"min_consumer": 2})}, "version 2", id="newer"
        ),
        pytest.param({"header": bundle_pb2.BundleHeader(num_shards=2)}, "No such file", id="shard file missing"),
        pytest.param({"crc32c": 1}, "checksum 0x00000001 of 'a'", id="wrong checksum"),
        pytest.param({"name": b"a" * 100_000, "offset": 1}, r"aaa\.\.\..{,100}$", id="long name"),
    ],
)
def test_hostile_entries_are_refused(tmp_path: Path, entry: dict[str, object], message: str) -> None:
    forge(tmp_path / "ckpt-1", **entry)  # type: ignore[arg-type]
    with pytest.raises(CorruptCheckpointError, match=message) as caught:
        restore(tmp_path / "ckpt-1")
    assert str(caught.value).startswith(f"{tmp_path}/ckpt-1.")


def restore(prefix: Path) -> dict[str, Array]:
    read = Bundle.open(prefix)
    read.verify(read.entries)
    return {name: read.array(name) for name in read.entries}


def test_tensors_may_share_bytes(tmp_path: Path) -> None:
    prefix = tmp_path / "ckpt-1"
    write(prefix, {"a": np.arange(6, dtype=np.float32)})
    (_, head), (_, value) = sstable.read(Path(f"{prefix}.index").read_bytes(), path=prefix)
    records = [(b"", head), *((f"{number:06d}".encode(), value) for number in range(10_000))]
    Path(f"{prefix}.index").write_bytes(sstable.write(records))
    read = Bundle.open(prefix)
    assert np.shares_memory(read.array("000000"), read.array("009999"))


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_a_file_that_is_missing_or_no_regular_file_is_refused(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / "good", {"a": np.ones(3)})
    write(tmp_path / "ckpt-1", {"a": np.ones(3)})
    file = tmp_path / f"ckpt-1.{suffix}"
    makers: list[Callable[[], None]] = [
        lambda: None,
        file.mkdir,
        lambda: os.mkfifo(file),
        lambda: file.symlink_to(tmp_path / f"good.{suffix}"),
    ]
    for make in makers:
        file.rmdir() if file.is_dir() else file.unlink()
        make()
        with pytest.raises(CorruptCheckpointError, match=rf"{suffix}: expected .+ found"):
            Bundle.open(tmp_path / "ckpt-1")
        file.touch() if not os.path.lexists(file) else None


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": np.ones(20, np.float32), "s": strings(b"one", b"two")})
    for file in list(tmp_path.iterdir()):
        content = file.read_bytes()
        for length in range(len(content)):
            file.write_bytes(content[:length])
            with pytest.raises(CorruptCheckpointError):
                restore(tmp_path / "ckpt-1")
        file.write_bytes(content)
    restore(tmp_path / "ckpt-1")


def test_every_flipped_bit_of_the_data_is_found(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": np.ones(16, np.float32), "s": strings(b"one", b"", b"x" * 130)})
    file = tmp_path / "ckpt-1.data-00000-of-00001"
    content = file.read_bytes()
    for bit in range(len(content) * 8):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(CorruptCheckpointError):
            restore(tmp_path / "ckpt-1")


def test_a_huge_sparse_index_is_refused_unread(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": np.ones(3)})
    os.truncate(tmp_path / "ckpt-1.index", 1 << 40)
    with pytest.raises(CorruptCheckpointError, match=r"at most [0-9]+ bytes, found 1099511627776"):
        Bundle.open(tmp_path / "ckpt-1")


@pytest.mark.parametrize("at", [0, 3, (8 << 20) - 1, 8 << 20, (17 << 20) + 4])
def test_a_flipped_bit_anywhere_in_a_large_tensor_is_found(tmp_path: Path, at: int) -> None:
    write(tmp_path / "ckpt-1", {"a": np.zeros((17 << 20) + 5, np.uint8), "b": np.zeros(3, np.uint8)})
    Bundle.open(tmp_path / "ckpt-1").verify(["a", "b"])
    with (tmp_path / "ckpt-1.data-00000-of-00001").open("r+b") as file:
        file.seek(at)
        file.write(b"\x10")
    with pytest.raises(CorruptCheckpointError, match="of 'a', found 0x"):
        Bundle.open(tmp_path / "ckpt-1").verify(["b", "a"])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mapped", [True, False])
def test_values_that_are_not_finite_are_found_when_asked_for(tmp_path: Path, dtype: str, mapped: bool) -> None:
    number = DTYPES[dtype]
    write(tmp_path / "ckpt-1", {"good": np.ones(1000, number), "bad": np.array([1, np.nan]).astype(number)})
    read = Bundle.open(tmp_path / "ckpt-1", mapped=mapped)
    read.verify(["good", "bad"])
    read.verify(["good"], finite=True)
    with pytest.raises(ParameterError, match="expected finite values in 'bad', found NaN or infinity"):
        read.verify(["good", "bad"], finite=True)
