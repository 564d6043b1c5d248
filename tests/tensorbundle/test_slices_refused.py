"""Parts that make up no variable, or are not what they say, are refused; so is writing any."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError
from paramsync.tensorbundle import index, sstable
from paramsync.tensorbundle.index import data_file, index_file
from paramsync.v1 import bundle_pb2
from tests.support.partitioned import bits, restore, save


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        pytest.param(["0,2:-"], r"make up \[4, 3\], found parts of 2 of 4", id="a part is missing"),
        pytest.param(["0,2:0,1", "2,2:1,2"], "found 2 of 4 different parts", id="a corner is missing"),
        pytest.param(["0,3:-", "2,2:-"], "meet neither at 2 nor at 3", id="parts overlap"),
        pytest.param(["0,1:-", "2,2:-"], "meet neither at 2 nor at 1", id="a gap"),
    ],
)
def test_parts_that_do_not_make_up_the_variable_are_refused(tmp_path: Path, parts: list[str], message: str) -> None:
    save(tmp_path / "a", bits(4, 3), parts)
    with pytest.raises(CorruptCheckpointError, match=message):
        Bundle.open(tmp_path / "a")


Records = dict[bytes, bundle_pb2.BundleEntry]
FIRST, SECOND = index.part_key("kernel", [(0, 2), index.WHOLE]), index.part_key("kernel", [(2, 2), index.WHOLE])
WHOLE = b"kernel"


def no_part(records: Records) -> None:
    del records[SECOND]


def no_variable(records: Records) -> None:
    del records[WHOLE]


def part_twice(records: Records) -> None:
    records[WHOLE].slices.add().CopyFrom(records[WHOLE].slices[0])


def part_of_another_dtype(records: Records) -> None:
    records[SECOND].dtype = 1


def part_of_another_shape(records: Records) -> None:
    records[SECOND].shape.dim[0].size = 1
    records[SECOND].size = 12


def parts_in_one_place(records: Records) -> None:
    records[SECOND].offset = records[FIRST].offset


def part_in_the_place_of_a_tensor(records: Records) -> None:
    records[b"z"] = bundle_pb2.BundleEntry()
    records[b"z"].CopyFrom(records[SECOND])


def parts_that_overlap_in_the_file(records: Records) -> None:
    records[SECOND].offset = 12


def part_past_the_file(records: Records) -> None:
    records[SECOND].offset = 1 << 40


def part_outside(records: Records) -> None:
    records[WHOLE].slices[1].extent[0].start = 3


def huge_part(records: Records) -> None:
    records[WHOLE].slices[1].extent[0].length = (1 << 63) - 1


def empty_part(records: Records) -> None:
    records[WHOLE].slices[1].extent[0].length = 0


def negative_part(records: Records) -> None:
    records[WHOLE].slices[1].extent[0].start = -1


def part_of_another_rank(records: Records) -> None:
    del records[WHOLE].slices[1].extent[1]


def part_of_part(records: Records) -> None:
    records[SECOND].slices.add().CopyFrom(records[WHOLE].slices[0])


def huge_variable(records: Records) -> None:
    records[WHOLE].shape.dim[1].size = 1 << 62


def negative_variable(records: Records) -> None:
    records[WHOLE].shape.dim[1].size = -1


def empty_and_huge_variable(records: Records) -> None:
    """Each part could be addressed."""
    for key, size in ((FIRST, 2), (SECOND, 2), (WHOLE, 4)):
        records[key].dtype = 6
        records[key].size = 0
        del records[key].shape.dim[:]
        for one in (size, 0, 1 << 61):
            records[key].shape.dim.add(size=one)
    for part in records[WHOLE].slices:
        part.extent.add()
    for start, key in enumerate((FIRST, SECOND)):
        records[index.part_key("kernel", [(2 * start, 2), index.WHOLE, index.WHOLE])] = records.pop(key)


def million_parts(records: Records) -> None:
    for _ in range(1 << 20):
        records[WHOLE].slices.add()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_part, "expected an entry for the part [(2, 2), (0, -1)] of 'kernel', found none"),
        (no_variable, "expected the variable that has the part"),
        (part_twice, "found 3 of 2 different parts"),
        (part_of_another_dtype, "a part of 'kernel' that is uint32 [2, 3], found float32 [2, 3]"),
        (part_of_another_shape, "a part of 'kernel' that is uint32 [2, 3], found uint32 [1, 3]"),
        (parts_in_one_place, "tensors that do not overlap"),
        (part_in_the_place_of_a_tensor, "tensors that do not overlap"),
        (parts_that_overlap_in_the_file, "tensors that do not overlap"),
        (part_past_the_file, "found a file of 48 bytes"),
        (part_outside, "extent 3, 2 in a dimension of 4"),
        (huge_part, "extent 2, 9223372036854775807 in a dimension of 4"),
        (empty_part, "extent 2, 0 in a dimension of 4"),
        (negative_part, "extent -1, 2 in a dimension of 4"),
        (part_of_another_rank, "1 extents for 2 dimensions"),
        (part_of_part, "a tensor in one piece"),
        (huge_variable, "a part of 'kernel' that is uint32 [2, 4611686018427387904], found uint32 [2, 3]"),
        (negative_variable, "a part of 'kernel' that is uint32 [2, -1], found uint32 [2, 3]"),
        (empty_and_huge_variable, "'kernel' with a shape that can be addressed, found (4, 0, 2305843009213693952)"),
        (million_parts, "an entry of at most 1048576 bytes"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_hostile_parts_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    save(tmp_path / "a", bits(4, 3), ["0,2:-", "2,2:-"])
    path = index_file(tmp_path / "a")
    (head, *pairs) = sstable.read(path.read_bytes(), path=path)
    records = {key: bundle_pb2.BundleEntry.FromString(value) for key, value in pairs}
    change(records)
    encoded = [(key, entry.SerializeToString()) for key, entry in sorted(records.items())]
    path.write_bytes(sstable.write([head, *encoded]))
    with pytest.raises(CorruptCheckpointError, match=re.escape(message)):
        restore(tmp_path / "a")


def test_a_part_is_verified(tmp_path: Path) -> None:
    save(tmp_path / "a", bits(4, 3), ["0,2:-", "2,2:-"])
    file = data_file(tmp_path / "a", 0, 1)
    content = file.read_bytes()
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(CorruptCheckpointError, match="of 'kernel'"):
            restore(tmp_path / "a")


def test_partitioned_variables_are_not_written(tmp_path: Path) -> None:
    save(tmp_path / "a", bits(4, 3), ["0,2:-", "2,2:-"])
    with pytest.raises(ValueError, match="'kernel': expected a tensor in one piece, found 2 parts"):
        index.encode(index.read(index_file(tmp_path / "a")))
