"""Partitioned variables are read whole; parts that make up no variable, or are not what they say, are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError
from paramsync.tensorbundle import index, sstable
from paramsync.tensorbundle.index import data_file, index_file
from paramsync.v1 import bundle_pb2
from tests.support.partitioned import bits, restore, save

v1 = tf.compat.v1


@pytest.mark.parametrize("resource", [False, True], ids=["ref variables", "resource variables"])
@pytest.mark.parametrize("sharded", [False, True], ids=["one shard", "sharded"])
@pytest.mark.parametrize(
    "partitioner",
    [
        pytest.param(v1.fixed_size_partitioner(3), id="rows"),
        pytest.param(v1.fixed_size_partitioner(2, axis=1), id="columns"),
        pytest.param(v1.variable_axis_size_partitioner(24), id="by size"),
        pytest.param(lambda **_: [7, 1], id="a part for each row"),
        pytest.param(lambda **_: [1, 1], id="one part"),
    ],
)
def test_partitioned_variables_of_a_saver_are_read_whole(
    tmp_path: Path, partitioner: Any, resource: bool, sharded: bool
) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        chance = v1.random_normal_initializer()
        whole = v1.get_variable(
            "dense/kernel", (7, 5), tf.float32, chance, partitioner=partitioner, use_resource=resource
        )
        plain = v1.get_variable("dense/bias", initializer=np.arange(3, dtype=np.int16))
        session.run(v1.global_variables_initializer())
        expected = session.run(tf.convert_to_tensor(whole))
        saver = v1.train.Saver([whole, plain], sharded=sharded)
        prefix = Path(saver.save(session, str(tmp_path / "model")))
    read = Bundle.open(prefix)
    assert list(read.entries) == ["dense/bias", "dense/kernel"]
    read.verify(read.entries)
    assert read.entries["dense/kernel"].size == expected.nbytes
    assert read.entries["dense/kernel"].shape == (7, 5)
    assert read.array("dense/kernel").tobytes() == expected.tobytes()
    assert read.array("dense/bias").tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(["0,2:-:-", "2,2:-:-"], id="rows"),
        pytest.param(["-:2,1:-", "-:0,2:-"], id="in any order"),
        pytest.param(["0,1:0,2:-", "0,1:2,1:-", "1,3:0,2:-", "1,3:2,1:-"], id="a grid"),
        pytest.param([f"{i},1:{j},1:{k},1" for i in range(4) for j in range(3) for k in range(2)], id="single values"),
    ],
)
def test_parts_along_several_dimensions_are_put_together(tmp_path: Path, parts: list[str]) -> None:
    save(tmp_path / "a", bits(4, 3, 2), parts)
    assert restore(tmp_path / "a").tolist() == bits(4, 3, 2).tolist()


def test_strings_in_parts_are_put_together(tmp_path: Path) -> None:
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "a"),
        tensor_names=["s", "s"],
        shape_and_slices=["3 0,1", "3 1,2"],
        tensors=[[b"one"], [b"", b"three"]],
    )
    assert restore(tmp_path / "a", "s").tolist() == [b"one", b"", b"three"]


@pytest.mark.parametrize("name", ["a", "\u00e9/with space", "nul\0inside\0", "layer/" * 40])
@pytest.mark.parametrize("start", [0, 1, 63, 64, 8191, 8192, 70_000, (1 << 20) - 1, 1 << 20, 4 * 10**9, (1 << 62) + 1])
def test_keys_are_those_of_tensorflow(tmp_path: Path, name: str, start: int) -> None:
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "a"),
        tensor_names=[name.encode()],
        shape_and_slices=[f"{start + 3} 1 {start},2:-"],
        tensors=[bits(2, 1)],
    )
    path = index_file(tmp_path / "a")
    keys = [key for key, _ in sstable.read(path.read_bytes(), path=path)]
    assert keys == [b"", index.part_key(name, [(start, 2), index.WHOLE]), name.encode()]


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


def entry(key: bytes, **fields: Any) -> Any:
    return lambda records: records[key].MergeFrom(bundle_pb2.BundleEntry(**fields))


def second_rows(**fields: int) -> Any:
    """Change the extent of the second part's rows."""
    return lambda records: records[WHOLE].slices[1].extent[0].MergeFrom(bundle_pb2.TensorSlice.Extent(**fields))


def columns(size: int) -> Any:
    return lambda records: setattr(records[WHOLE].shape.dim[1], "size", size)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda records: records.pop(SECOND),
            "expected an entry for the part [(2, 2), (0, -1)] of 'kernel', found none",
        ),
        (lambda records: records.pop(WHOLE), "expected the variable that has the part"),
        (lambda records: records[WHOLE].slices.append(records[WHOLE].slices[0]), "found 3 of 2 different parts"),
        (entry(SECOND, dtype=1), "a part of 'kernel' that is uint32 [2, 3], found float32 [2, 3]"),
        (lambda records: records.update({b"z": records[SECOND]}), "do not overlap at 48 of shard 0, found one at 24"),
        (entry(SECOND, offset=12), "do not overlap at 24 of shard 0, found one at 12"),
        (entry(SECOND, offset=1 << 40), "found a file of 48 bytes"),
        (second_rows(start=3), "extent 3, 2 in a dimension of 4"),
        (second_rows(start=-1), "extent -1, 2 in a dimension of 4"),
        (second_rows(length=(1 << 63) - 1), "extent 2, 9223372036854775807 in a dimension of 4"),
        (second_rows(length=0), "extent 2, 0 in a dimension of 4"),
        (lambda records: records[WHOLE].slices[1].extent.pop(), "1 extents for 2 dimensions"),
        (lambda records: records[SECOND].slices.append(records[WHOLE].slices[0]), "a tensor in one piece"),
        (columns(1 << 62), "a part of 'kernel' that is uint32 [2, 4611686018427387904], found uint32 [2, 3]"),
        (columns(-1), "a part of 'kernel' that is uint32 [2, -1], found uint32 [2, 3]"),
        (empty_and_huge_variable, "'kernel' with a shape that can be addressed, found (4, 0, 2305843009213693952)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
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
