"""Graphs of TensorFlow 1 that somebody else made: nothing foreign runs unasked, and nothing ends the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from paramsync.errors import GraphError, UnsafeGraphError
from paramsync.graphs.draft import finish
from paramsync.graphs.sources.meta_graphs import draft_of_meta
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from tests.support.control_flow import control_flow

v1 = tf.compat.v1


def reading(path: Path) -> Any:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.string, (), name="x")
        pipeline = tf.io.read_file(str(path))
        words = tf.identity(pipeline, name="words")
        tf.strings.join([x, words], name="y")
        return v1.train.export_meta_graph(graph=graph)


def test_an_op_that_is_not_safe_is_refused_by_name_unless_it_is_allowed(tmp_path: Path) -> None:
    meta = reading(tmp_path / "secret")
    with pytest.raises(UnsafeGraphError, match="ReadFile"):
        draft_of_meta(meta, ["x"], ["y"])
    draft_of_meta(meta, ["x"], ["y"], allowed=["ReadFile"])


def test_what_is_before_an_input_is_of_no_interest(tmp_path: Path) -> None:
    graph = finish(draft_of_meta(reading(tmp_path / "secret"), ["x", "words"], ["y"]))
    assert graph([], {"x": tf.constant("a"), "words": tf.constant("b")})["y"] == b"ab"
    assert str(graph.signatures[DEFAULT_SIGNATURE].inputs["words"]) == "string []"


@pytest.mark.parametrize("batches", [2, 3, 8])
def test_batches_beyond_the_rank_are_refused_before_tensorflow_aborts(batches: int) -> None:
    with tf.Graph().as_default() as graph:
        x, rows = v1.placeholder(tf.float32, (None,), name="x"), v1.placeholder(tf.int32, (None,), name="rows")
        tf.identity(tf.gather(tf.reshape(x, [1, -1]), tf.reshape(rows, [1, -1]), batch_dims=1), name="y")
        meta = v1.train.export_meta_graph(graph=graph)
    gather = next(node for node in meta.graph_def.node if node.op == "GatherV2")
    gather.attr["batch_dims"].i = batches
    gather.input[:2] = ["x", "rows"]
    with pytest.raises(GraphError, match="cannot be imported"):
        draft_of_meta(meta, ["x", "rows"], ["y"])


def test_a_table_whose_filling_might_never_end_is_refused() -> None:
    with tf.Graph().as_default() as graph:
        keys = v1.placeholder(tf.int64, (None,), name="keys")
        (number,) = tf.while_loop(lambda _: True, lambda number: [number + 1], [tf.zeros([1], tf.int64)])
        words = tf.lookup.KeyValueTensorInitializer(number, number)
        tf.identity(tf.lookup.StaticHashTable(words, -1).lookup(keys), name="y")
        meta = v1.train.export_meta_graph(graph=graph)
    with pytest.raises(GraphError, match="fills a table: expected it to be filled without a loop"):
        draft_of_meta(meta, ["keys"], ["y"])


def test_what_fills_a_table_must_be_safe_too(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with tf.Graph().as_default() as graph:
        text = v1.placeholder(tf.string, (None,), name="text")
        words = tf.lookup.KeyValueTensorInitializer(tf.stack([tf.io.read_file(str(secret))]), tf.zeros([1], tf.int64))
        tf.identity(tf.lookup.StaticHashTable(words, -1).lookup(text), name="y")
        meta = v1.train.export_meta_graph(graph=graph)
    with pytest.raises(UnsafeGraphError, match="ReadFile"):
        draft_of_meta(meta, ["text"], ["y"])


def test_a_table_that_would_fill_the_memory_is_refused() -> None:
    with tf.Graph().as_default() as graph:
        keys = v1.placeholder(tf.int64, (None,), name="keys")
        many = tf.range(1 << 40, dtype=tf.int64)
        tf.identity(
            tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(many, many), -1).lookup(keys), name="y"
        )
        meta = v1.train.export_meta_graph(graph=graph)
    with pytest.raises(GraphError, match="fills a table: expected shapes that are known"):
        draft_of_meta(meta, ["keys"], ["y"])


@control_flow("v1")
def test_a_loop_that_two_tensors_enter_is_refused_before_tensorflow_sees_it() -> None:
    """Which would end the process."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (), name="x")
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2.0), [tf.constant(0), x])
        tf.identity(y, name="y")
        meta = v1.train.export_meta_graph(graph=graph)
    merge = next(node for node in meta.graph_def.node if node.op == "Merge")
    merge.input.insert(0, merge.input[0])
    merge.attr["N"].i = 3
    with pytest.raises(UnsafeGraphError, match="expected one tensor that enters the loop"):
        draft_of_meta(meta, ["x"], ["y"])


def test_a_graph_that_assigns_is_refused_for_that() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (), name="x")
        counter = v1.get_variable("counter", (), use_resource=True)
        with tf.control_dependencies([counter.assign_add(1.0)]):
            tf.add(x, counter.read_value(), name="y")
        meta = v1.train.export_meta_graph(graph=graph)
    with pytest.raises(GraphError, match="AssignAddVariableOp"):
        finish(draft_of_meta(meta, ["x"], ["y"]))
