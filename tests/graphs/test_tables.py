"""A graph's lookup tables travel with it, are filled once, and are checked like everything else in a file."""

from __future__ import annotations

import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs import graph as graph_module
from paramsync.graphs.graph import Graph
from paramsync.graphs.tables import Contents, pack
from paramsync.v1 import graph_pb2, serving_pb2
from tests.support.tables import find, table_graph


def test_a_file_keeps_its_tables_and_every_call_finds_the_same() -> None:
    graph = Graph.from_bytes(table_graph({"b": 2, "a": 1}).to_bytes())
    for _ in range(3):
        found = graph([], {"x": tf.constant(["a", "b", "c"])})
        assert (found["y"].numpy().tolist(), int(found["size"])) == ([1, 2, -1], 2)


@pytest.mark.parametrize(
    ("keys", "values", "otherwise", "found"),
    [
        ([1, 5], ["one", "five"], "none", [b"five", b"one"]),
        (["x", "y"], [[1.0, 2.0], [3.0, 4.0]], [0.0, 0.0], [[3.0, 4.0], [1.0, 2.0]]),
        (["x", "y"], [True, False], False, [False, True]),
        (["", "y\0z"], [0.5, 1.5], 0.0, [1.5, 0.5]),
    ],
)
def test_tables_of_many_kinds_are_served(keys: object, values: object, otherwise: object, found: object) -> None:
    tensor = tf.constant(keys, tf.int64 if keys == [1, 5] else tf.string)
    graph = Graph.from_bytes(find(tensor, tf.constant(values), otherwise=otherwise).to_bytes())
    assert graph([], {"x": tensor[::-1]})["y"].numpy().tolist() == found


def test_an_empty_table_finds_nothing() -> None:
    found = table_graph({})([], {"x": tf.constant(["a"])})
    assert (found["y"].numpy().tolist(), int(found["size"])) == ([-1], 0)


def test_the_digest_covers_what_a_table_holds_and_not_in_which_order_it_was_read() -> None:
    assert table_graph({"a": 1, "b": 2}).digest == table_graph({"b": 2, "a": 1}).digest
    assert len({table_graph(one).digest for one in ({"a": 1}, {"a": 2}, {"b": 1}, {})}) == 4


def test_a_table_that_was_changed_in_the_file_is_refused() -> None:
    message = table_graph({"a": 1}).message()
    message.tables[0].values = pack("table", tf.constant(["a"]), tf.constant([9], tf.int64)).values
    with pytest.raises(GraphError, match="is not the one it says it is"):
        Graph.from_bytes(message.SerializeToString())


def of(keys: serving_pb2.Tensor, values: serving_pb2.Tensor) -> graph_pb2.Table:
    return graph_pb2.Table(node="t", keys=keys.SerializeToString(), values=values.SerializeToString())


def tensor(dtype: int, size: int, **values: object) -> serving_pb2.Tensor:
    found = serving_pb2.Tensor(dtype=dtype, **values)  # type: ignore[arg-type]
    found.tensor_shape.dim.add(size=size)
    return found


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (graph_pb2.Table(node="t", keys=b"\xff", values=b""), "'t' is not readable"),
        (of(tensor(9, 2, int64_val=[1, 2]), tensor(9, 1, int64_val=[1])), "a value for each key"),
        (
            of(tensor(9, 1 << 40, int64_val=[1]), tensor(9, 1 << 40, int64_val=[1])),
            "at most .* bytes of repeated values",
        ),
        (of(tensor(20, 1), tensor(9, 1, int64_val=[1])), "a dtype of numbers, booleans or strings, found resource"),
    ],
)
def test_a_table_that_cannot_be_one_is_refused(table: graph_pb2.Table, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Contents(table)


@pytest.mark.parametrize(
    ("keys", "values"), [(tensor(7, 2, string_val=[b"a", b"a"]), [1, 2]), (tensor(1, 1, float_val=[0.5]), [1])]
)
def test_a_table_that_tensorflow_cannot_make_is_refused(keys: serving_pb2.Tensor, values: list[int]) -> None:
    with pytest.raises(GraphError, match="'t' cannot be made"):
        Contents(of(keys, tensor(9, len(values), int64_val=values))).fill()


def test_a_file_with_tables_beyond_all_measure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module, "TABLE_BYTES", 8)
    with pytest.raises(GraphError, match="expected at most 8 bytes of tables"):
        Graph.from_bytes(table_graph({"a": 1, "b": 2}).to_bytes())
