"""Parameters come by name or from a checkpoint, share memory where that is safe; embeddings are read by rows."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync import dtypes
from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError, ParameterError
from paramsync.following.replica import Replica
from paramsync.graphs.capturing import Capture, capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.parameters import alias, arrange, read
from paramsync.sources.source import Progress, Verification
from paramsync.version import Version
from tests.support.checkpoints import resident
from tests.support.published import publish_graph


class Line(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = tf.Variable([[2.0], [3.0]])
        self.offset = tf.Variable(1.0)
        self.unused = tf.Variable(7, dtype=tf.int64)

    @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.float32)])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x @ self.slope + self.offset}


SLOPE, OFFSET = "slope/.ATTRIBUTES/VARIABLE_VALUE", "offset/.ATTRIBUTES/VARIABLE_VALUE"
GOOD = {SLOPE: np.float32([[1], [2]]), OFFSET: np.float32(3)}  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def line() -> tuple[Line, Capture]:
    module = Line()
    return module, capture(module)


def answer(graph: Graph, parameters: Sequence[tf.Tensor]) -> float:
    return float(graph(parameters, {"x": tf.constant([[10.0, 1.0]])})["y"].numpy().item())


def test_arrays_and_tensors_by_name_are_put_in_order(line: tuple[Line, Capture]) -> None:
    graph = line[1].graph
    for values in (GOOD, {name: tf.constant(one) for name, one in reversed(GOOD.items())}):
        assert answer(graph, arrange(graph, values)) == 15.0


def test_an_array_may_be_written_to_afterwards(line: tuple[Line, Capture]) -> None:
    graph, slope = line[1].graph, np.zeros([2, 1], np.float32)
    arranged = arrange(graph, GOOD | {SLOPE: slope})
    slope[:] = 100
    assert answer(graph, arranged) == 3.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"of the graph: expected offset/.*, slope/.* \(2 missing\), found nothing"),
        ({OFFSET: GOOD[OFFSET], "b": 1.0}, r"expected slope/\S* \(1 missing\), found b, offset/"),
        (GOOD | {"b": 1.0}, r"expected offset/.*, slope/\S*, found b too \(1 not needed\)"),
        (GOOD | {OFFSET: np.zeros(1, np.float32)}, r"expected offset/\S* float32 \[\], found float32 \[1\]$"),
        (
            {SLOPE: np.zeros([2, 2], np.float32), OFFSET: np.float64(0)},
            r"offset/\S* float32 \[\], slope/\S* float32 \[2, 1\] \(2 differ\), found float64 \[\], float32 \[2, 2\]",
        ),
    ],
)
def test_all_that_is_wrong_is_listed(line: tuple[Line, Capture], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        arrange(line[1].graph, values)


def test_a_checkpoint_of_tensorflows_is_read_whatever_else_it_holds(line: tuple[Line, Capture], tmp_path: Path) -> None:
    module, captured = line
    prefix = Path(tf.train.Checkpoint(module).write(str(tmp_path / "ckpt")))
    for checkpoint in (prefix, Bundle.open(prefix)):
        assert answer(captured.graph, read(captured.graph, checkpoint)) == 24.0


def test_a_checkpoint_that_is_damaged_or_not_finite_is_refused(line: tuple[Line, Capture], tmp_path: Path) -> None:
    values = tf.train.Checkpoint(slope=tf.Variable([[2.0], [np.nan]]), offset=tf.Variable(1.0))
    prefix = Path(values.write(str(tmp_path / "ckpt")))
    with pytest.raises(ParameterError, match="expected finite values in 'slope"):
        read(line[1].graph, prefix)
    data = Path(f"{prefix}.data-00000-of-00001")
    data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))
    with pytest.raises(CorruptCheckpointError):
        read(line[1].graph, prefix)


def test_a_call_with_other_arguments_says_what_was_expected(line: tuple[Line, Capture]) -> None:
    graph = line[1].graph
    parameters = arrange(graph, GOOD)
    with pytest.raises(ParameterError, match="of a call: expected 2 of them, found 1"):
        answer(graph, parameters[:1])


def test_a_checkpoint_whose_keys_went_by_the_optimizer_is_read_for_a_graph_captured_before_it_was_built(
    tmp_path: Path,
) -> None:
    """A key is the shortest path to a variable, and a trained model has shorter ones through its optimizer."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    graph = capture(model).graph
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    prefix = Path(tf.train.Checkpoint(model).write(str(tmp_path / "ckpt")))
    assert not {one.name for one in graph.parameters} & Bundle.open(prefix).entries.keys()
    x = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(next(iter(graph(read(graph, prefix), {"inputs": tf.constant(x)}).values())), model(x))


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


def aligned(count: int, dtype: npt.DTypeLike, offset: int = 0) -> npt.NDArray[Any]:
    """An array whose address is `offset` bytes past a multiple of the alignment."""
    size = count * np.dtype(dtype).itemsize
    room = np.zeros(size + 2 * ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT + offset
    return room[start : start + size].view(dtype)


SHARED = [
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64",
    "float16 bfloat16 float32 float64 complex64 complex128",
]
COPIED = [
    "float8_e5m2 float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2fnuz float4_e2m1fn int2 int4 uint2 uint4",
    "qint8 quint8 qint16 quint16 qint32",
]
DTYPES = {dtypes.name(number): dtypes.to_numpy(number) for number in range(64) if number != dtypes.STRING}


def dtype_named(name: str) -> np.dtype[np.generic]:
    dtype = DTYPES[name]
    assert dtype is not None
    return dtype


@pytest.mark.parametrize("name", " ".join(SHARED).split())
def test_an_aligned_array_is_shared(name: str) -> None:
    array = aligned(100, dtype_named(name))
    tensor = alias(array)
    array.view(np.uint8)[:] = 1
    assert tensor.numpy().tobytes() == array.tobytes()
    assert tensor.dtype == getattr(tf, name)
    assert tensor.shape == (100,)
    assert tensor.device.endswith("CPU:0")


@pytest.mark.parametrize("name", " ".join(COPIED).split())
def test_what_dlpack_has_no_word_for_is_copied(name: str) -> None:
    array = aligned(100, dtype_named(name))
    tensor = alias(array)
    assert tensor.dtype.name == name
    array.view(np.uint8)[:] = 1
    assert not any(tensor.numpy().tobytes())


def test_every_dtype_of_a_checkpoint_is_either_shared_or_copied() -> None:
    named = " ".join(SHARED + COPIED).split()
    assert set(named) == {name for name, dtype in DTYPES.items() if dtype is not None}


@pytest.mark.parametrize(
    "array",
    [
        np.array([False, True, False])[1:],
        np.array([1.5, -2.0, 3.0], ml_dtypes.bfloat16)[1:],
        np.array([b"a", b"\x00b"], object),
        np.zeros((0, 3), np.float32),
        np.arange(100, dtype=np.float32)[::2],
        np.array(3.0, np.float32),
        aligned(1000, np.float32, offset=4),
        np.frombuffer(bytes(ALIGNMENT), np.float32),
    ],
    ids=["bool", "bfloat16", "strings", "empty", "strided", "scalar", "misaligned", "read-only"],
)
def test_what_cannot_be_shared_is_copied_with_its_values(array: npt.NDArray[Any]) -> None:
    np.testing.assert_array_equal(alias(array).numpy(), array)


@pytest.mark.parametrize("name", ["float32", "bool", "bfloat16"])
def test_a_tensor_keeps_its_array_alive_and_no_longer(name: str) -> None:
    array = aligned(100, dtype_named(name))
    alive = weakref.ref(array.base)  # the memory that the array is a view of
    tensor = alias(array)
    del array
    gc.collect()
    assert alive() is not None
    assert not tf.reduce_any(tf.cast(tensor, tf.bool))
    del tensor
    gc.collect()
    assert alive() is None
