"""Written checkpoints: their plan, where tensors lie, that TensorFlow reads them, and what is shared."""

from __future__ import annotations

import array as arrays
import errno
import resource
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.checkpoint.file_pool import FilePool
from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.tensor_bytes import PORTION
from paramsync.checkpoint.writer import LINKED, CheckpointWriter, Tensor, WritePlan, arrange, decide
from paramsync.dtypes import Array
from paramsync.errors import ParameterError
from tests.support.arrays import any_bits, strings
from tests.support.rewritten import LARGE, Checkpoints, write


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "float16", "bool", "uint8", "int64", "complex128"])
def test_values_are_written_bit_by_bit(checkpoints: Checkpoints, name: str) -> None:
    shapes = {"matrix": (7, 3), "scalar": (), "empty": (0, 5), "page": (5000,)}
    checkpoints.write({one: any_bits(name, shape) for one, shape in shapes.items()})


def test_strings_are_written(checkpoints: Checkpoints) -> None:
    tensors = {
        "matrix": strings(b"a", b"", b"\0\xff\0", b"x" * 300).reshape(2, 2),
        "scalar": strings(b"graph\0").reshape(()),
        "empty": strings().reshape(3, 0),
    }
    assert checkpoints.write(tensors).bytes_written > 0
    again = checkpoints.write(tensors)
    assert (again.bytes_written, set(again.unchanged)) == (0, set(tensors))


def test_what_changed_is_let_go_of_once_it_is_copied(checkpoints: Checkpoints) -> None:
    unchanged = {"frozen": any_bits("float32", (LARGE,)), "little": np.ones(3)}
    checkpoints.write({**unchanged, "large": np.zeros(LARGE), "empty": np.ones((0, 3))})
    tensors = {**unchanged, "large": np.ones(LARGE), "empty": np.ones((0, 4)), "new": np.ones(5), "text": strings(b"a")}
    alive = {name: weakref.ref(tensor) for name, tensor in tensors.items()}
    seen: dict[str, bool] = {}

    def let_go(name: str) -> None:
        del tensors[name]
        seen[name] = alive[name]() is None

    checkpoints.writer.write(checkpoints.path / "ckpt-2", tensors, copied=let_go)
    assert seen == dict.fromkeys(["large", "empty", "new", "text"], True)
    assert set(tensors) == set(unchanged)
    found = Bundle.open(checkpoints.path / "ckpt-2")
    found.verify(found.entries)
    assert (found.array("large") == 1).all()


def test_a_checkpoint_without_tensors_is_one(tmp_path: Path) -> None:
    assert write(tmp_path / "ckpt-1", {}).bytes == 0
    assert tf.train.load_checkpoint(str(tmp_path / "ckpt-1")).get_variable_to_shape_map() == {}
    assert Bundle.open(tmp_path / "ckpt-1").entries == {}


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.asfortranarray(any_bits("float32", (30, 40))), id="columns first"),
        pytest.param(any_bits("float32", (30, 40))[::3, ::-2], id="strided"),
        pytest.param(np.broadcast_to(np.float32(3), (5, 7)), id="broadcast"),
        pytest.param(np.asfortranarray(strings(b"a", b"b", b"c", b"d").reshape(2, 2)), id="strings"),
    ],
)
def test_arrays_of_any_layout_are_written_row_by_row(checkpoints: Checkpoints, array: Array) -> None:
    checkpoints.write({"a": array})
    assert checkpoints.write({"a": array}).bytes_written == 0


class ByDlpack:
    """An array of a library that only speaks DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **wishes: Any) -> Any:
        return self._array.__dlpack__(**wishes)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(ByDlpack(any_bits("float32", (5, 4))), id="dlpack"),
        pytest.param(any_bits("float32", (5, 4)).data, id="memoryview"),
        pytest.param(arrays.array("f", any_bits("float32", (20,)).tobytes()), id="buffer"),
        pytest.param(tf.constant(any_bits("float32", (5, 4))), id="tensor"),
    ],
)
def test_whatever_has_the_bytes_can_be_written(tmp_path: Path, tensor: Tensor) -> None:
    write(tmp_path / "ckpt-1", {"a": tensor})
    assert Bundle.open(tmp_path / "ckpt-1").array("a").tobytes() == any_bits("float32", (5, 4)).tobytes()


def test_text_and_fixed_width_bytes_are_strings(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"text": np.array(["\u00e9", "b"]), "bytes": np.array([b"ab", b"c"])})
    read = Bundle.open(tmp_path / "ckpt-1")
    assert read.array("text").tolist() == ["\u00e9".encode(), b"b"]
    assert read.array("bytes").tolist() == [b"ab", b"c"]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": np.array(["2026-01-01"], "datetime64[D]")}, "parameters of 'a': expected a dtype"),
        ({"a": np.zeros(3, ">f4")}, "found >f4"),
        ({"a": np.array([1], object)}, "found int"),
        ({"a": object()}, "found object"),
        ({"a": [[1], [2, 3]]}, "expected an array, found list"),
        ({"": np.zeros(3)}, "expected names"),
        ({"\0a": np.zeros(3)}, "expected names"),
    ],
)
def test_what_tensorflow_could_not_read_is_not_written(tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        write(tmp_path / "ckpt-1", {"0": np.zeros(9), **tensors})
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


@pytest.mark.parametrize("size", [0, 100, 5000, 127_000])
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, size: int) -> None:
    tensors = {f"{number:04d}": np.zeros(2, np.float32) for number in range(2000)}
    with pytest.raises(OSError, match="too large") as caught, no_space_beyond(size):
        write(tmp_path / "ckpt-1", tensors)
    assert caught.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir())


def test_data_whose_index_cannot_be_written_has_no_name_and_is_a_spare(tmp_path: Path) -> None:
    tensors = {f"{number:0200d}": np.zeros(0, np.float32) for number in range(2000)} | {"a": np.ones(2)}
    spares = FilePool(tmp_path)
    with pytest.raises(OSError, match="too large"), no_space_beyond(5000):
        CheckpointWriter(spares).write(tmp_path / "ckpt-1", tensors)
    spares.close()
    assert [file.name for file in tmp_path.iterdir()] == [".spare-ckpt-1.data-00000-of-00001"]


def anonymous_memory() -> int:
    """Bytes of this process that belong to no file."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


def test_writing_makes_no_copy_of_the_tensors(tmp_path: Path) -> None:
    array = np.ones(64 << 20, np.uint8)
    spares = FilePool(tmp_path)
    before = anonymous_memory()
    write_twice = [CheckpointWriter(spares).write(tmp_path / f"ckpt-{at}", {"a": array, "b": array}) for at in range(2)]
    assert anonymous_memory() - before < 16 << 20
    spares.close()
    assert write_twice[0].bytes == 128 << 20


def frozen_and_trained(value: float) -> dict[str, Array]:
    return {
        "frozen": any_bits("float64", (3000,)),
        "more": any_bits("float32", (10, 10)),
        "trained": np.full(700, value),
        "step": np.array(value),
    }


TRAINED = 701 * 8


@pytest.mark.parametrize("told", [True, False])
def test_what_did_not_change_is_not_written_again(checkpoints: Checkpoints, told: bool) -> None:
    unchanged = {"frozen", "more"} if told else set()
    first = checkpoints.write(frozen_and_trained(1), unchanged)  # what is told of no checkpoint is not believed
    assert first.bytes_written == first.bytes
    assert not first.unchanged
    for value in (2, 3, 4):
        written = checkpoints.write(frozen_and_trained(value), unchanged)
        assert (written.bytes, written.bytes_written) == (first.bytes, TRAINED)
        assert written.unchanged == {"frozen", "more"}
    inodes = [(checkpoints.path / checkpoints.files(number)[0]).stat().st_ino for number in (1, 2, 3, 4)]
    assert len(set(inodes)) == 1
    assert [len(checkpoints.files(number)) for number in (1, 2, 3, 4)] == [1, 2, 2, 2]


def test_a_checkpoint_of_which_nothing_changed_takes_no_space(checkpoints: Checkpoints) -> None:
    first = checkpoints.write(frozen_and_trained(1))
    second = checkpoints.write(frozen_and_trained(1))
    assert (second.bytes, second.bytes_written) == (first.bytes, 0)
    assert first.checksum() == second.checksum()
    assert checkpoints.files(2) == ["ckpt-2.data-00000-of-00001"]


def test_the_digest_is_that_of_the_values_wherever_they_lie(checkpoints: Checkpoints) -> None:
    digests = [checkpoints.write(frozen_and_trained(value)).checksum() for value in (1, 2, 1)]
    assert digests[0] == digests[2] != digests[1]
    assert len(digests[0]) == 32
    assert (
        checkpoints.write({"a": np.zeros((2, 3))}).checksum() != checkpoints.write({"a": np.zeros((3, 2))}).checksum()
    )


@pytest.mark.parametrize(
    "tensor", [np.zeros(3000, np.float32), np.zeros((2, 3000)), np.zeros(2999), np.zeros(3000, np.int64)]
)
def test_what_has_another_shape_or_dtype_did_change_whatever_the_caller_says(
    checkpoints: Checkpoints, tensor: Array
) -> None:
    checkpoints.write({"a": np.zeros(3000), "b": np.zeros(1)})
    assert checkpoints.write({"a": tensor, "b": np.zeros(1)}, {"a", "b", "c"}).unchanged == {"b"}


@pytest.mark.parametrize("at", [0, 511, 512, 100_000, LARGE - 1])
def test_a_change_anywhere_is_found(checkpoints: Checkpoints, at: int) -> None:
    tensors = {"a": np.zeros(LARGE, np.float32), "b": np.zeros(LARGE, np.float32)}
    checkpoints.write(tensors)
    tensors["b"][at] = -0.0  # equal as a number, not as bytes
    assert checkpoints.write(tensors).unchanged == {"a"}


def test_what_a_stranger_left_under_the_name_of_a_shared_file_gives_way(checkpoints: Checkpoints) -> None:
    checkpoints.write(frozen_and_trained(1))
    (checkpoints.path / "ckpt-2.data-00000-of-00002").write_bytes(b"rubbish")
    assert checkpoints.write(frozen_and_trained(2)).bytes_written == TRAINED


MB = 1 << 20


def shard(size: int, *names: str) -> tuple[int, tuple[str, ...]]:
    return size, names


@pytest.mark.parametrize(
    ("sizes", "unchanged", "shards", "expected"),
    [
        pytest.param({"a": 8, "b": 8}, "", [], WritePlan({}, (), ("a", "b")), id="the first"),
        pytest.param({"a": 8, "b": 8}, "", [shard(16, "a", "b")], WritePlan({}, (), ("a", "b")), id="all changed"),
        pytest.param(
            {"a": 8, "b": 8}, "ab", [shard(16, "a", "b")], WritePlan({0: ("a", "b")}, (), ()), id="none changed"
        ),
        pytest.param(
            {"a": 8, "b": 2}, "a", [shard(10, "a", "b")], WritePlan({0: ("a",)}, (), ("b",)), id="mostly frozen"
        ),
        pytest.param({"a": 4, "b": 6}, "a", [shard(10, "a", "b")], WritePlan({}, ("a",), ("b",)), id="mostly trained"),
        pytest.param(
            {"a": 4, "b": 6},
            "a",
            [shard(4, "a"), shard(6, "b")],
            WritePlan({0: ("a",)}, (), ("b",)),
            id="parted, as the plan before made them",
        ),
        pytest.param({"a": 5}, "a", [shard(10, "a")], WritePlan({0: ("a",)}, (), ()), id="half stale"),
        pytest.param({"a": 5}, "a", [shard(11, "a")], WritePlan({}, ("a",), ()), id="more than half stale"),
        pytest.param({"a": 8, "c": 8}, "a", [shard(16, "a", "b")], WritePlan({0: ("a",)}, (), ("c",)), id="a new one"),
        pytest.param(
            {"a": 8}, "a", [shard(8, "a"), shard(8, "b")], WritePlan({0: ("a",)}, (), ()), id="one that is gone"
        ),
        pytest.param(
            {"a": 100, "b": 6300},
            "a",
            [shard(100, "a"), shard(6300, "b")],
            WritePlan({0: ("a",)}, (), ("b",)),
            id="1/64",
        ),
        pytest.param(
            {"a": 99, "b": 6300},
            "a",
            [shard(99, "a"), shard(6300, "b")],
            WritePlan({}, (), ("a", "b")),
            id="below 1/64",
        ),
        pytest.param(
            {"a": MB, "b": 1000 * MB}, "a", [shard(1001 * MB, "a", "b")], WritePlan({}, ("a",), ("b",)), id="a megabyte"
        ),
        pytest.param(
            {"a": 0, "b": 0}, "ab", [shard(0, "a", "b")], WritePlan({}, (), ("a", "b")), id="nothing to share"
        ),
        pytest.param(
            {"a": 0, "b": 8}, "ab", [shard(8, "a", "b")], WritePlan({0: ("a", "b")}, (), ()), id="an empty one"
        ),
        pytest.param({"a": 8}, "a", [shard(8)], WritePlan({}, ("a",), ()), id="a file that a stranger removed"),
        pytest.param({}, "", [], WritePlan({}, (), ()), id="nothing at all"),
    ],
)
def test_what_changed_is_written_and_the_rest_stays_where_that_pays(
    sizes: Mapping[str, int], unchanged: str, shards: Sequence[tuple[int, tuple[str, ...]]], expected: WritePlan
) -> None:
    assert decide(sizes, set(unchanged), shards) == expected


def test_of_too_many_shards_the_smallest_are_put_together() -> None:
    sizes = {f"{at:02d}": at + 10 for at in range(LINKED + 1)}
    plan = decide(sizes, set(sizes), [shard(size, name) for name, size in sizes.items()])
    assert list(plan.linked) == list(range(LINKED // 2 + 1, LINKED + 1))
    assert plan.moved == tuple(sizes)[: LINKED // 2 + 1]
    assert plan.changed == ()


def test_tensors_begin_on_64_bytes_and_large_ones_on_a_page() -> None:
    layout = arrange((3, 4095, 4096, 0, 1))
    assert layout.offsets == (0, 64, 8192, 12288, 12288)
    assert layout.end == 12289


def test_no_value_is_cut_in_two() -> None:
    sizes = (3, 2 * PORTION, 65, 3 * PORTION + 8, 1)
    pieces = [piece for portion in arrange(sizes).portions for piece in portion]
    assert len(pieces) > len(sizes)
    assert all(piece.start % ALIGNMENT == 0 for piece in pieces)
