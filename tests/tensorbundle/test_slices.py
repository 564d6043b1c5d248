"""Partitioned variables of v1 graphs: their parts are found and put together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.checkpoint.reader import Bundle
from paramsync.tensorbundle import index, sstable
from paramsync.tensorbundle.index import data_file, index_file
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


def test_parts_in_several_shards_are_put_together(tmp_path: Path) -> None:
    save(tmp_path / "one", bits(4, 3), ["0,2:-"])
    save(tmp_path / "two", bits(4, 3), ["2,2:-"])
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(tmp_path / "one"), str(tmp_path / "two")], destination_prefix=str(tmp_path / "both")
    )
    assert data_file(tmp_path / "both", 1, 2).exists()
    assert restore(tmp_path / "both").tolist() == bits(4, 3).tolist()


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


def test_many_parts_are_read_in_a_moment(tmp_path: Path) -> None:
    array = bits(2000, 4)
    save(tmp_path / "a", array, [f"{row},1:{half},2" for row in range(2000) for half in (0, 2)])
    assert restore(tmp_path / "a").tolist() == array.tolist()
