"""Lifting: what changes a variable, or cannot do with its value instead, is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.draft import finish
from tests.support.v1_drafts import check, draft_of

v1 = tf.compat.v1

Refused = Callable[[Any, tf.Tensor], tf.Tensor]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda v, x: v.assign_add(x[0]), "AssignAdd.* changes variable 'state' whenever it predicts"),
        (lambda v, x: v1.scatter_add(v, [0], [1.0]), "ScatterAdd.* changes variable 'state'"),
    ],
)
def test_what_changes_a_variable_is_refused_by_name(variable: Callable[..., Any], use: Refused, message: str) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        return tf.convert_to_tensor(use(variable("state", (4,)), x)) + x

    with pytest.raises(GraphError, match=message):
        check(build)


def test_what_changes_a_variable_in_a_function_is_refused_by_the_variables_own_name() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        state = v1.get_variable("state", (4,), use_resource=True)
        return tf.function(lambda rows: rows + state.assign_add(rows[0]))(x)

    with pytest.raises(GraphError, match=r"AssignAddVariableOp .* changes variable 'state'.*stateful=False"):
        check(build)


def test_a_reader_of_something_else_than_a_value_is_refused_by_name() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        weights = v1.get_variable("weights", (4,), use_resource=True)
        return x + tf.raw_ops.Pack(values=[weights.handle, weights.handle]).shape[0]

    def packed(x: tf.Tensor) -> tf.Tensor:
        weights = v1.get_variable("weights", (4,), use_resource=True)
        several = tf.raw_ops.Pack(values=[weights.handle, weights.handle])
        return x + tf.raw_ops.ReadVariableOp(resource=several[0], dtype=tf.float32)

    with pytest.raises(GraphError, match="Pack 'Pack' takes variable 'weights', and only reading"):
        check(packed)
    check(build)  # where nothing depends on it, it is of no interest


def test_random_numbers_from_a_variable_are_refused() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        state = v1.get_variable("state", (3,), tf.int64, initializer=v1.zeros_initializer(), use_resource=True)
        kind = tf.constant(1, tf.int64)
        return x + tf.raw_ops.StatefulUniform(resource=state.handle, algorithm=kind, shape=[4], dtype=tf.float32)

    with pytest.raises(GraphError, match=r"StatefulUniform .* draws random numbers from variable 'state'"):
        check(build)


def test_queues_iterators_and_tables_without_contents_are_refused_by_name() -> None:
    def queued(x: tf.Tensor) -> tf.Tensor:
        return x + v1.FIFOQueue(3, tf.float32, ((4,),)).dequeue()

    def iterated(x: tf.Tensor) -> tf.Tensor:
        data = tf.data.Dataset.from_tensors(tf.zeros(4))
        return x + v1.data.make_one_shot_iterator(data).get_next()

    def looked_up(x: tf.Tensor) -> tf.Tensor:
        initializer = tf.lookup.KeyValueTensorInitializer(tf.constant([1]), tf.constant([2.0]), tf.int32, tf.float32)
        return x + tf.lookup.StaticHashTable(initializer, 0.0).lookup(tf.cast(x, tf.int32))

    for build, message in (
        (queued, "FIFOQueueV2 'fifo_queue' belongs to an input pipeline"),
        (iterated, "Iterator.* belongs to an input pipeline; name the tensors that it delivers"),
        (looked_up, "HashTable.* is a lookup table whose contents are not known"),
    ):
        with pytest.raises(GraphError, match=message):
            check(build)


def test_a_function_that_calls_itself_is_refused() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        weights = v1.get_variable("weights", (4,), use_resource=True)
        y = tf.function(lambda rows: rows * weights)(x)
        draft = draft_of(graph, {"x": x}, {"y": y})
    (function,) = draft.graph_def.library.function
    call = next(node for node in draft.graph_def.node if "f" in node.attr)
    copy = function.node_def.add()
    copy.CopyFrom(call)
    names = [one.name for one in function.signature.input_arg]
    for position in range(len(copy.input)):
        copy.input[position] = names[position]
    with pytest.raises(GraphError, match="calls itself"):
        finish(draft)
