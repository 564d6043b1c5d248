"""A copy that is asked for wrongly or cannot be made is refused, and nothing is added to the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.surgery import connect, duplicate
from tests.support.copies import dense

v1 = tf.compat.v1


def network() -> tuple[tf.Tensor, tf.Tensor]:
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    rate = v1.placeholder(tf.float32, [], name="rate")
    v1.placeholder(tf.float32, [], name="unrelated")
    return x, tf.identity(dense(x, 3, "one") * rate, name="y")


REFUSED: dict[str, tuple[Callable[[tf.Tensor, tf.Tensor], Any], str]] = {
    "an unknown output": (lambda x, y: duplicate("z", [x]), r"no tensor 'z'; its placeholders: x, rate, unrelated"),
    "an unknown input": (lambda x, y: duplicate(y, ["z"]), r"no tensor 'z'; its placeholders: x, rate, unrelated"),
    "an unfed placeholder": (lambda x, y: duplicate(y, [x]), "placeholder 'rate' is needed .* not among the inputs"),
    "an input of no use": (
        lambda x, y: duplicate(y, [x, "rate", "unrelated"]),
        "no output depends on 'unrelated:0'; the outputs: y:0",
    ),
    "a replacement of no use": (
        lambda x, y: duplicate(y, [x, "rate"], replace={"unrelated": 1.0}),
        "no output depends on 'unrelated:0'",
    ),
    "another dtype": (
        lambda x, y: duplicate(y, ["rate"], replace={x: tf.zeros([7, 4], tf.int32)}),
        r"'x:0' does not fit: expected float32 \(None, 4\), found int32 \(7, 4\)",
    ),
    "another shape": (
        lambda x, y: duplicate(y, ["rate"], replace={x: tf.zeros([7, 5])}),
        r"'x:0' does not fit: expected float32 \(None, 4\), found float32 \(7, 5\)",
    ),
    "a value of another dtype": (lambda x, y: duplicate(y, x, replace={"rate": "much"}), "no float32 tensor"),
    "a variable of another shape": (
        lambda x, y: duplicate(y, [x, "rate"], replace={v1.global_variables()[0]: tf.zeros([3, 3])}),
        r"'one/kernel:0' does not fit: expected float32 \(4, 3\), found float32 \(3, 3\)",
    ),
    "an operation as input": (lambda x, y: duplicate(y, y.op), "'y' is an operation"),
    "no tensor at all": (lambda x, y: duplicate(y, [3.0]), "expected a tensor or variable of a graph.* found 3.0"),
    "tensors of two graphs": (lambda x, y: duplicate(y, elsewhere()), "of another graph"),
    "a replacement of another graph": (
        lambda x, y: duplicate(y, "rate", replace={x: elsewhere()}),
        "not of the graph the copy goes to",
    ),
    "sharing between graphs": (
        lambda x, y: duplicate(y, [x, "rate"], variables="shared", graph=tf.Graph()),
        "expected 'own', since graphs share no variables, found 'shared'",
    ),
    "no outputs": (lambda x, y: duplicate([], x), "expected outputs to copy, found none"),
    "a scope that is no name": (lambda x, y: duplicate(y, x, scope="a b"), "scope: expected .* found 'a b'"),
    "a scope that ends": (lambda x, y: duplicate(y, x, scope="a/"), "scope: expected .* found 'a/'"),
    "no scope": (lambda x, y: duplicate(y, x, scope=""), "scope: expected .* found ''"),
    "a word of one's own": (lambda x, y: duplicate(y, x, variables="mine"), "expected 'own' or 'shared', found 'mine'"),  # type: ignore[arg-type]
}


def elsewhere() -> tf.Tensor:
    with tf.Graph().as_default():
        return tf.zeros([7, 4], name="elsewhere")


@pytest.mark.parametrize("what", REFUSED)
def test_a_copy_that_cannot_be_made_is_refused_and_nothing_added(what: str) -> None:
    call, message = REFUSED[what]
    with tf.Graph().as_default() as graph:
        x, y = network()
        before = len(graph.get_operations())
        with pytest.raises(GraphError, match=message):
            call(x, y)
        added = [one.name for one in graph.get_operations()[before:]]
        assert not [one for one in added if not one.startswith("zeros")]  # which the call is given
        assert not graph.as_graph_def().library.function


def test_an_input_pipeline_is_not_copied_but_what_it_gives_can_be_an_input() -> None:
    with tf.Graph().as_default():
        queue = v1.FIFOQueue(3, [tf.float32], [[4]])
        batch = queue.dequeue(name="batch")
        with pytest.raises(GraphError, match="QueueDequeueV2 'batch' feeds the outputs from an input pipeline"):
            duplicate(batch * 2)
        assert duplicate(batch * 2, batch).inputs[0].name == "copy/batch:0"


def test_a_variable_that_nothing_initialises_is_refused_by_name() -> None:
    with tf.Graph().as_default():
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[4], name="lonely")
        y = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) * 2
        with pytest.raises(GraphError, match="variable 'lonely' is in no collection"):
            duplicate(y)
        assert duplicate(y, variables="shared").outputs


def test_what_is_not_part_of_a_copy_is_not_found_in_it() -> None:
    with tf.Graph().as_default():
        x, y = network()
        copy = duplicate(y, [x, "rate"])
        with pytest.raises(GraphError, match="'unrelated:0' is not part of the copy 'copy'"):
            copy["unrelated"]


def test_a_table_that_is_filled_at_run_time_is_not_copied_empty() -> None:
    with tf.Graph().as_default() as graph:
        words = v1.placeholder(tf.string, [None], name="words")
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, -1.0)
        filled = table.insert(tf.constant(["a"]), tf.constant([5.0]))
        y = tf.identity(table.lookup(words), name="y")
        assert duplicate(y, words).outputs  # of one graph, which shares it
        target = tf.Graph()
        with pytest.raises(GraphError, match="filled while a program runs: a copy in another graph would be empty"):
            duplicate(y, words, graph=target)
        with target.as_default(), pytest.raises(GraphError, match="a copy in another graph would be empty"):
            connect([(graph, None)], outputs=["y"])
        assert not target.get_operations()
        v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, filled)
        copy = duplicate(y, words, graph=target)
    with target.as_default(), v1.Session() as session:
        session.run(v1.tables_initializer())
        np.testing.assert_array_equal(session.run(copy.outputs[0], {copy.inputs[0]: ["a", "b"]}), [5.0, -1.0])
