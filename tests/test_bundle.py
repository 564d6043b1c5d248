"""Checkpoint files: TensorFlow reads ours, we read TensorFlow's, and neither files nor callers can do harm."""

from __future__ import annotations

import errno
import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from paramsync import dtypes, shards, table
from paramsync.bundle import Array, Bundle
from paramsync.errors import CorruptCheckpointError, ParameterError
from paramsync.v1 import bundle_pb2

NUMERIC = [dtypes.name(number) for number in range(64) if number != dtypes.STRING and dtypes.to_numpy(number)]


def any_bits(name: str, shape: tuple[int, ...]) -> Array:
    """Every bit pattern may occur, those of NaNs too."""
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    size = int(np.prod(shape)) * dtype.itemsize
    content = np.random.default_rng(size).integers(0, 2 if name == "bool" else 256, size, np.uint8)
    return content.view(dtype).reshape(shape)


def strings(*values: bytes) -> Array:
    return np.array([*values, None], object)[:-1]  # without None numpy would guess at a dtype for some


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


def assert_same(found: object, expected: Array) -> None:
    if expected.dtype == object:
        array = np.array(found, object)
        assert array.shape == expected.shape
        assert array.tolist() == expected.tolist()
        return
    array = np.asarray(found)
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert array.tobytes() == expected.tobytes()


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


# What TensorFlow reads ------------------------------------------------------------------------------------------------


def test_tensorflow_reads_every_dtype(tmp_path: Path) -> None:
    tensors = every_dtype()
    shards.write(tmp_path / "ckpt-1", tensors)
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt-1"))
    assert reader.get_variable_to_shape_map() == {name: list(array.shape) for name, array in tensors.items()}
    for name, array in tensors.items():
        assert_same(reader.get_tensor(name), array)


def test_tensorflow_restores_a_checkpoint_of_objects(tmp_path: Path) -> None:
    original = tf.train.Checkpoint(weights=tf.Variable([[1.0, 2.0]]), step=tf.Variable(7, dtype=tf.int64))
    written = Bundle.open(Path(original.write(str(tmp_path / "theirs"))))
    shards.write(tmp_path / "ours", {name: written.array(name) for name in written.entries})
    other = tf.train.Checkpoint(weights=tf.Variable([[0.0, 0.0]]), step=tf.Variable(0, dtype=tf.int64))
    other.read(str(tmp_path / "ours")).assert_consumed()
    assert other.weights.numpy().tolist() == [[1.0, 2.0]]
    assert other.step.numpy() == 7


def test_tensorflow_reads_an_index_of_many_blocks(tmp_path: Path) -> None:
    tensors = {f"layer/{number}/kernel": np.array(number, np.int32) for number in range(20_000)}
    shards.write(tmp_path / "ckpt-1", tensors)
    assert (tmp_path / "ckpt-1.index").stat().st_size > 2 * 256 * 1024
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt-1"))
    assert len(reader.get_variable_to_shape_map()) == len(tensors)
    for number in range(0, 20_000, 97):
        assert reader.get_tensor(f"layer/{number}/kernel") == number


def test_tensorflow_accepts_a_checkpoint_without_tensors(tmp_path: Path) -> None:
    assert shards.write(tmp_path / "ckpt-1", {}) == 0
    assert tf.train.load_checkpoint(str(tmp_path / "ckpt-1")).get_variable_to_shape_map() == {}
    assert Bundle.open(tmp_path / "ckpt-1").entries == {}


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


def test_slices_of_partitioned_variables_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "theirs", {"kernel": any_bits("float32", (2, 2))}, slices="4 2 0,2:0,2")
    with pytest.raises(CorruptCheckpointError, match="slices of"):
        Bundle.open(tmp_path / "theirs")


def test_a_dtype_numpy_lacks_is_listed_and_refused_when_asked_for(tmp_path: Path) -> None:
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "theirs"),
        tensor_names=["odd", "plain"],
        shape_and_slices=["", ""],
        tensors=[tf.bitcast(tf.constant([1, 2], tf.int8), tf.qint8), tf.constant(1.0)],
    )
    read = Bundle.open(tmp_path / "theirs")
    assert set(read.entries) == {"odd", "plain"}
    assert read.array("plain") == 1.0
    for ask in (read.array, lambda name: read.verify([name])):
        with pytest.raises(CorruptCheckpointError, match="'odd' of dtype 11"):
            ask("odd")


# What we write --------------------------------------------------------------------------------------------------------


def test_tensors_lie_at_aligned_places_in_order_of_their_names(tmp_path: Path) -> None:
    tensors = {
        "c": any_bits("uint8", (4096,)),
        "b": any_bits("uint8", (4095,)),
        "a": any_bits("uint8", (3,)),
        "d": any_bits("uint8", (0,)),
    }
    assert shards.write(tmp_path / "ckpt-1", tensors) == 4096 + 4095 + 3
    entries = Bundle.open(tmp_path / "ckpt-1").entries
    assert {name: entry.offset for name, entry in entries.items()} == {"a": 0, "b": 64, "c": 8192, "d": 12288}
    assert list(entries) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.asfortranarray(any_bits("float32", (30, 40))), id="columns first"),
        pytest.param(any_bits("float32", (30, 40))[::3, ::-2], id="strided"),
        pytest.param(np.broadcast_to(np.float32(3), (5, 7)), id="broadcast"),
        pytest.param(np.asfortranarray(strings(b"a", b"b", b"c", b"d").reshape(2, 2)), id="strings"),
    ],
)
def test_arrays_of_any_layout_are_written_row_by_row(tmp_path: Path, array: Array) -> None:
    shards.write(tmp_path / "ckpt-1", {"a": array})
    assert_same(Bundle.open(tmp_path / "ckpt-1").array("a"), array)
    assert_same(tf.train.load_checkpoint(str(tmp_path / "ckpt-1")).get_tensor("a"), array)


def test_text_and_fixed_width_bytes_are_strings(tmp_path: Path) -> None:
    shards.write(tmp_path / "ckpt-1", {"text": np.array(["\u00e9", "b"]), "bytes": np.array([b"ab", b"c"])})
    read = Bundle.open(tmp_path / "ckpt-1")
    assert read.array("text").tolist() == ["\u00e9".encode(), b"b"]
    assert read.array("bytes").tolist() == [b"ab", b"c"]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": np.array(["2026-01-01"], "datetime64[D]")}, "parameters of 'a': expected a dtype"),
        ({"a": np.zeros(3, ">f4")}, "found >f4"),
        ({"a": np.array([1], object)}, "found int"),
        ({"": np.zeros(3)}, "expected names"),
        ({"\0a": np.zeros(3)}, "expected names"),
    ],
)
def test_what_tensorflow_could_not_read_is_not_written(tmp_path: Path, tensors: dict[str, Array], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        shards.write(tmp_path / "ckpt-1", {"0": np.zeros(9), **tensors})
    assert not list(tmp_path.iterdir())


@contextmanager
def no_space_beyond(size: int) -> Iterator[None]:
    """No file may grow beyond a size: what a full disk looks like to a writer. Nor may pytest's own output."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 100, 5000, 60_000])
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, size: int) -> None:
    tensors: dict[str, Array] = {f"{number:04d}": np.zeros(2, np.float32) for number in range(2000)}
    # the largest size is enough for the first file and not for both
    with pytest.raises(OSError, match="too large") as caught, no_space_beyond(size):
        shards.write(tmp_path / "ckpt-1", tensors)
    assert caught.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir())


def test_writing_makes_no_copy_of_the_tensors(tmp_path: Path) -> None:
    array = np.zeros(64 << 20, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shards.write(tmp_path / "ckpt-1", {"a": array, "b": array, "c": array})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (32 << 10)  # KiB


# What is mapped -------------------------------------------------------------------------------------------------------


def test_arrays_are_the_mapping_itself(tmp_path: Path) -> None:
    shards.write(tmp_path / "ckpt-1", {"a": any_bits("float32", (5, 4)), "b": any_bits("bfloat16", (5000,))})
    read = Bundle.open(tmp_path / "ckpt-1")
    for name, alignment in (("a", 64), ("b", 4096)):
        assert not read.array(name).flags.owndata
        assert read.array(name).ctypes.data % alignment == 0
        assert np.shares_memory(read.array(name), read.array(name))


def test_an_array_outlives_its_bundle_and_its_files(tmp_path: Path) -> None:
    expected = any_bits("float64", (100_000,))
    shards.write(tmp_path / "ckpt-1", {"a": expected})
    array = Bundle.open(tmp_path / "ckpt-1").array("a")
    for file in tmp_path.iterdir():
        file.unlink()
    gc.collect()
    assert_same(array, expected)


def test_arrays_can_be_exported_and_writing_to_them_changes_no_file(tmp_path: Path) -> None:
    shards.write(tmp_path / "ckpt-1", {"a": np.ones(5000, np.float32)})
    before = (tmp_path / "ckpt-1.data-00000-of-00001").read_bytes()
    array = Bundle.open(tmp_path / "ckpt-1").array("a")
    array.view(np.float32).__dlpack__()
    array[:] = 2
    assert (tmp_path / "ckpt-1.data-00000-of-00001").read_bytes() == before
    assert Bundle.open(tmp_path / "ckpt-1").array("a")[0] == 1


def test_a_shard_without_bytes_is_read(tmp_path: Path) -> None:
    shards.write(tmp_path / "ckpt-1", {"a": np.zeros((0, 3), np.float32)})
    assert (tmp_path / "ckpt-1.data-00000-of-00001").stat().st_size == 0
    read = Bundle.open(tmp_path / "ckpt-1")
    read.verify(["a"])
    assert read.array("a").shape == (0, 3)


# What is not believed -------------------------------------------------------------------------------------------------


def forge(prefix: Path, *, name: bytes = b"a", header: bundle_pb2.BundleHeader | None = None, **entry: object) -> None:
    """A checkpoint with one float32 [2, 3], whose index was changed by somebody who knows the format."""
    shards.write(prefix, {"a": np.zeros((2, 3), np.float32)})
    (_, head), (_, value) = table.read(Path(f"{prefix}.index").read_bytes(), path=prefix)
    message = bundle_pb2.BundleEntry.FromString(value)
    for field in entry:
        message.ClearField(field)
    message.MergeFrom(bundle_pb2.BundleEntry(**entry))  # type: ignore[arg-type]
    records = [(b"", header.SerializeToString() if header else head), (name, message.SerializeToString())]
    Path(f"{prefix}.index").write_bytes(table.write(records))


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
        pytest.param({"dtype": 7, "shape": shape(1 << 40)}, "for 1099511627776 strings", id="more strings than bytes"),
        pytest.param({"name": b"\xff"}, "malformed", id="name that is no text"),
        pytest.param({"name": b"\0a"}, "slices", id="name with NUL first"),
        pytest.param({"header": bundle_pb2.BundleHeader()}, "at least one shard", id="no shards"),
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
    shards.write(prefix, {"a": np.arange(6, dtype=np.float32)})
    (_, head), (_, value) = table.read(Path(f"{prefix}.index").read_bytes(), path=prefix)
    records = [(b"", head), *((f"{number:06d}".encode(), value) for number in range(10_000))]
    Path(f"{prefix}.index").write_bytes(table.write(records))
    read = Bundle.open(prefix)
    assert np.shares_memory(read.array("000000"), read.array("009999"))


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_a_file_that_is_missing_or_no_regular_file_is_refused(tmp_path: Path, suffix: str) -> None:
    shards.write(tmp_path / "good", {"a": np.ones(3)})
    shards.write(tmp_path / "ckpt-1", {"a": np.ones(3)})
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
    shards.write(tmp_path / "ckpt-1", {"a": np.ones(20, np.float32), "s": strings(b"one", b"two")})
    for file in list(tmp_path.iterdir()):
        content = file.read_bytes()
        for length in range(len(content)):
            file.write_bytes(content[:length])
            with pytest.raises(CorruptCheckpointError):
                restore(tmp_path / "ckpt-1")
        file.write_bytes(content)
    restore(tmp_path / "ckpt-1")


def test_every_flipped_bit_of_the_data_is_found(tmp_path: Path) -> None:
    shards.write(tmp_path / "ckpt-1", {"a": np.ones(16, np.float32), "s": strings(b"one", b"", b"x" * 130)})
    file = tmp_path / "ckpt-1.data-00000-of-00001"
    content = file.read_bytes()
    for bit in range(len(content) * 8):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(CorruptCheckpointError):
            restore(tmp_path / "ckpt-1")


def test_a_huge_sparse_index_is_refused_unread(tmp_path: Path) -> None:
    shards.write(tmp_path / "ckpt-1", {"a": np.ones(3)})
    os.truncate(tmp_path / "ckpt-1.index", 1 << 40)
    with pytest.raises(CorruptCheckpointError, match="at most 268435456 bytes, found 1099511627776"):
        Bundle.open(tmp_path / "ckpt-1")


def test_verify_reads_only_what_it_is_told_to(tmp_path: Path) -> None:
    shards.write(tmp_path / "ckpt-1", {"a": np.ones(16, np.float32), "b": np.ones(16, np.float32)})
    file = tmp_path / "ckpt-1.data-00000-of-00001"
    file.write_bytes(b"\1" + file.read_bytes()[1:])
    read = Bundle.open(tmp_path / "ckpt-1")
    read.verify(["b"])
    with pytest.raises(CorruptCheckpointError, match=r"checksum 0x[0-9a-f]{8} of 'a', found 0x"):
        read.verify(["b", "a"])


def test_bundles_that_are_gone_leave_no_open_file(tmp_path: Path) -> None:
    shards.write(tmp_path / "ckpt-1", {"a": np.ones(16, np.float32)})
    gc.collect()
    before = open_files()
    for _ in range(100):
        Bundle.open(tmp_path / "ckpt-1").array("a")
    (tmp_path / "ckpt-1.data-00000-of-00001").write_bytes(b"short")
    for _ in range(100):
        with pytest.raises(CorruptCheckpointError):
            Bundle.open(tmp_path / "ckpt-1")
    gc.collect()
    assert open_files() == before


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
