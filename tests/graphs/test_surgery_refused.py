"""A copy that cannot be made is refused with a GraphError that says why, and adds nothing to any graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.surgery import connect, duplicate, synchronise
from tests.support.copies import dense, ready

v1 = tf.compat.v1


def contents(graph: tf.Graph) -> tuple[int, int, dict[str, int]]:
    library = graph.as_graph_def().library
    collections = {key: len(graph.get_collection(key)) for key in graph.get_all_collection_keys()}
    return len(graph.get_operations()), len(library.function), collections


@contextmanager
def unchanged(*graphs: tf.Graph) -> Iterator[None]:
    before = [contents(one) for one in graphs]
    yield
    assert [contents(one) for one in graphs] == before


class Network:
    """A network, and tensors with which it cannot be copied."""

    def __init__(self) -> None:
        self.x = v1.placeholder(tf.float32, [None, 4], name="x")
        rate = v1.placeholder(tf.float32, [], name="rate")
        self.ids = v1.placeholder(tf.int32, [None], name="ids")
        self.y = tf.identity(tf.gather(dense(self.x, 3, "one") * rate, self.ids), name="y")
        v1.placeholder(tf.float32, [], name="unrelated")
        self.kernel = v1.global_variables()[0]
        self.ints, self.wide, self.small = tf.zeros([7, 4], tf.int32), tf.zeros([7, 5]), tf.zeros([3, 3])
        self.rows = [tf.ones([4]), tf.zeros([4])]
        with tf.Graph().as_default():
            self.elsewhere = tf.zeros([7, 4], name="elsewhere")


EAGER = tf.constant(1.0)
ALL = ["x", "rate", "ids"]
REFUSED: dict[str, tuple[Callable[[Network], Any], str]] = {
    "an unknown output": (
        lambda on: duplicate("one/Rleu", ALL),
        r"outputs: the graph has no tensor 'one/Rleu'; its placeholders: x, rate, ids, unrelated; similar: one/Relu",
    ),
    "an unfed placeholder": (
        lambda on: duplicate(on.y, "x"),
        "placeholder '(rate|ids)' is needed .* not among the inputs",
    ),
    "an input of no use": (
        lambda on: duplicate(on.y, [*ALL, "unrelated"]),
        "no output depends on 'unrelated:0'; the outputs: y:0",
    ),
    "another dtype": (
        lambda on: duplicate(on.y, ALL[1:], replace={on.x: on.ints}),
        r"'x:0' does not fit: expected float32 \(None, 4\), found int32 \(7, 4\)",
    ),
    "another shape": (
        lambda on: duplicate(on.y, ALL[1:], replace={on.x: on.wide}),
        r"'x:0' does not fit: expected float32 \(None, 4\), found float32 \(7, 5\)",
    ),
    "a variable's shape": (
        lambda on: duplicate(on.y, ALL, replace={on.kernel: on.small}),
        r"'one/kernel:0' does not fit: expected float32 \(4, 3\), found float32 \(3, 3\)",
    ),
    "several tensors": (
        lambda on: duplicate(on.y, ALL[1:], replace={on.x: on.rows}),
        r"'x:0' is no float32 tensor.* make one \(tf\.stack",
    ),
    "a rounded number": (
        lambda on: duplicate(on.y, ALL[:2], replace={on.ids: np.array([1.5])}),
        "'ids:0' would be rounded: expected int32, found float64",
    ),
    "an operation as input": (lambda on: duplicate(on.y, on.y.op), "'y' is an operation"),
    "an eager tensor": (lambda on: duplicate(on.y, EAGER), "inputs: expected a tensor or variable of a graph"),
    "tensors of two graphs": (lambda on: duplicate(on.y, on.elsewhere), "of another graph"),
    "a replacement of another graph": (
        lambda on: duplicate(on.y, ALL[1:], replace={on.x: on.elsewhere}),
        "not of the graph the copy goes to",
    ),
    "an input with a replacement": (
        lambda on: duplicate(on.y, ALL, replace={on.x: np.zeros((2, 4), np.float32)}),
        "'x:0' is among the inputs too",
    ),
    "two replacements": (
        lambda on: duplicate(on.y, ALL[1:], replace={"x": np.zeros((2, 4)), on.x: np.ones((2, 4))}),
        "'x:0' has two replacements",
    ),
    "sharing between graphs": (
        lambda on: duplicate(on.y, ALL, variables="shared", graph=tf.Graph()),
        "expected 'own', since graphs share no variables, found 'shared'",
    ),
    "no outputs": (lambda on: duplicate([], on.x), "expected outputs to copy, found none"),
    "a scope that is no name": (lambda on: duplicate(on.y, ALL, scope="a b"), "scope: expected .* found 'a b'"),
    "a tensor that was not copied": (
        lambda on: duplicate(on.y, ALL, graph=tf.Graph())["unrelated"],
        "'unrelated:0' is not part of the copy 'copy'",
    ),
    "a device that is none": (lambda on: duplicate(on.y, ALL, device="/nowhere:x"), "device: expected a name such as"),
    "a source without a name": (lambda _: connect([("", None)]), "sources: expected a .meta file.* found ''"),
    "another word": (lambda on: duplicate(on.y, ALL, variables="mine"), "expected 'own' or 'shared', found 'mine'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_copy_that_cannot_be_made_is_refused_and_nothing_added(what: str) -> None:
    call, message = REFUSED[what]
    with tf.Graph().as_default() as graph:
        network = Network()
        with unchanged(graph), pytest.raises(GraphError, match=message):
            call(network)


def test_a_copy_that_tensorflow_cannot_build_adds_nothing() -> None:
    with tf.Graph().as_default() as graph:
        shape = v1.placeholder(tf.int32, [2], name="shape")
        x = v1.placeholder(tf.float32, [3, 4], name="x")
        y = tf.function(lambda one: one * 2)(tf.reshape(x, shape)) * v1.get_variable("weights", [])
        new, other = tf.constant([5, 7]) // 1, tf.constant([5, 7]) // 2 + [0, 3]
        with unchanged(graph), pytest.raises(GraphError, match="the copy cannot be built"):
            duplicate(y, x, replace={shape: new})
        assert duplicate(y, x, replace={shape: other}).scope == "copy"  # the scope was not used up


def test_graphs_that_nothing_can_be_added_to_are_refused_and_copied_to_others() -> None:
    functions: list[tf.Graph] = []

    @tf.function
    def function(x: tf.Tensor) -> tf.Tensor:
        functions.append(x.graph)
        return x * 2.0

    function.get_concrete_function(tf.TensorSpec([], tf.float32))
    with tf.Graph().as_default() as finalised:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = tf.identity(dense(x, 3, "one"), name="y")
    finalised.finalize()
    for graph, message in ((finalised, "finalised"), (functions[0], "outside of tf.function")):
        with unchanged(finalised, graph):
            with pytest.raises(GraphError, match=f"graph: .*{message}"):
                duplicate(y, x, graph=graph)
            with pytest.raises(GraphError, match=f"graph: .*{message}"):
                connect([(finalised, None)], outputs=["y"], graph=graph)
    with finalised.as_default(), pytest.raises(GraphError, match="finalised"):
        synchronise(v1.trainable_variables(), v1.trainable_variables())
    with finalised.as_default():
        copy = duplicate("y", "x", graph=tf.Graph())
    with ready(copy.graph) as session:
        assert session.run(copy.outputs[0], {copy.inputs[0]: np.ones((2, 4))}).shape == (2, 3)


def test_a_variable_that_nothing_initialises_is_refused_by_name() -> None:
    with tf.Graph().as_default():
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[4], name="lonely")
        y = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) * 2
        with pytest.raises(GraphError, match="variable 'lonely' is in no collection"):
            duplicate(y)
        assert duplicate(y, variables="shared").outputs


def test_a_table_that_is_filled_at_run_time_is_not_copied_empty() -> None:
    with tf.Graph().as_default():
        words = v1.placeholder(tf.string, [None], name="words")
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, -1.0)
        filled = table.insert(tf.constant(["a"]), tf.constant([5.0]))
        y = tf.identity(table.lookup(words), name="y")
        assert duplicate(y, words).outputs  # in one graph, which shares the table
        target = tf.Graph()
        with unchanged(target), pytest.raises(GraphError, match="a copy in another graph would be empty"):
            duplicate(y, words, graph=target)
        v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, filled)
        copy = duplicate(y, words, graph=target)
    with target.as_default(), v1.Session() as session:
        session.run(v1.tables_initializer())
        np.testing.assert_array_equal(session.run(copy.outputs[0], {copy.inputs[0]: ["a", "b"]}), [5.0, -1.0])
