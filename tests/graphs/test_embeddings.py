"""Graphs know the parameters of which they only look up rows; large ones come to memory as they are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import CorruptCheckpointError
from paramsync.following.replica import Replica
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.sources.source import Progress, Verification
from paramsync.version import Version
from tests.support.checkpoints import resident
from tests.support.published import publish_graph

ROWS, COLUMNS = 1 << 14, 128  # 8 MB
_SPEC = tf.TensorSpec([None], tf.int64, name="x")


class Table(tf.Module):
    """A table that is read by `read`, and a bias."""

    def __init__(self, read: Callable[[tf.Variable, tf.Tensor], tf.Tensor], rows: int = 8) -> None:
        super().__init__()
        self.table = tf.Variable(tf.zeros([rows, COLUMNS]))
        self.bias = tf.Variable(tf.zeros([COLUMNS]))
        self._read = read

    @tf.function(input_signature=[_SPEC])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": self._read(self.table, x) + self.bias}


def _sparse(table: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.embedding_lookup_sparse(table, tf.sparse.from_dense(x[:, None]), None, combiner="mean")


def _in_a_loop(table: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    return tf.map_fn(lambda row: tf.gather(table, row), x, fn_output_signature=tf.float32)


LOOKUPS: dict[str, Callable[[tf.Variable, tf.Tensor], tf.Tensor]] = {
    "gather": tf.gather,
    "embedding_lookup": tf.nn.embedding_lookup,
    "embedding_lookup_sparse": _sparse,
    "gather_nd": lambda table, x: tf.gather_nd(table, x[:, None]),
    "gather and shape": lambda table, x: tf.gather(table, x) * tf.cast(tf.shape(table)[0], tf.float32),
    "gather twice": lambda table, x: tf.gather(table, x) + tf.gather(tf.identity(table), x + 1),
}
OTHERS: dict[str, Callable[[tf.Variable, tf.Tensor], tf.Tensor]] = {
    "product": lambda table, x: tf.matmul(tf.cast(x, tf.float32)[None, :8], table),
    "gather of columns": lambda table, x: tf.gather(table, x, axis=1)[:, :1],
    "gather and a sum": lambda table, x: tf.gather(table, x) + tf.reduce_sum(table),
    "gather of what was computed": lambda table, x: tf.gather(tf.nn.relu(table), x),
    "gather in a loop": _in_a_loop,
    "gather with itself": lambda table, x: tf.gather(table, tf.cast(table[0], tf.int64)),
}


def found(graph: Graph) -> set[str]:
    return {name.partition("/")[0] for name in graph.embeddings}


@pytest.mark.parametrize("read", LOOKUPS | OTHERS)
def test_a_table_is_an_embedding_if_only_rows_of_it_are_looked_up(read: str) -> None:
    assert found(capture(Table((LOOKUPS | OTHERS)[read])).graph) == ({"table"} if read in LOOKUPS else set())


def published(store: Path, read: Callable[[tf.Variable, tf.Tensor], tf.Tensor]) -> Version:
    """Each row of the table is its number."""
    made = capture(Table(read, ROWS))
    table = np.repeat(np.arange(ROWS, dtype=np.float32)[:, None], COLUMNS, axis=1)
    values = {
        one.name: table if "table" in one.name else np.zeros(COLUMNS, np.float32) for one in made.graph.parameters
    }
    return publish_graph(store, made.graph, 1, values)


def test_requests_bring_in_the_rows_of_an_embedding_that_nobody_wrote_to(memory: Path) -> None:
    version = published(memory, LOOKUPS["gather"])
    told: list[Progress] = []
    replica = Replica("m", memory)
    replica.swap(replica.restore(version, told.append))
    assert max(one.bytes_total for one in told) < ROWS
    assert resident(memory) < ROWS * COLUMNS
    for row in (0, 77, ROWS - 1):
        answer, _ = replica.predict({"x": np.array([row])})
        assert answer["y"].numpy().tolist() == [[float(row)] * COLUMNS]
    assert resident(memory) < ROWS * COLUMNS


@pytest.mark.parametrize(("way", "verification"), [("gather", "checksums"), ("gather and a sum", "auto")])
def test_all_else_is_brought_in_and_an_embedding_whose_checksum_is_computed(
    memory: Path, way: str, verification: Verification
) -> None:
    version = published(memory, (LOOKUPS | OTHERS)[way])
    replica = Replica("m", memory, verification=verification)
    replica.swap(replica.restore(version))
    assert resident(memory) >= ROWS * COLUMNS * 4


def test_an_embedding_whose_file_is_cut_while_it_is_brought_in_does_not_serve(memory: Path) -> None:
    version = published(memory, LOOKUPS["gather"])

    def cut(progress: Progress) -> None:
        if progress.bytes_total:
            os.truncate(memory / f"{version.prefix}.data-00000-of-00001", 1 << 16)

    with pytest.raises(CorruptCheckpointError, match="a file that was cut"):
        Replica("m", memory).restore(version, cut)
