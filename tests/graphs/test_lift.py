"""Lifting: a variable's value as an argument does the same however it is read and passed; other uses are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.draft import finish
from paramsync.graphs.graph import Graph
from tests.support.v1_drafts import check, control_flow, draft_of

v1 = tf.compat.v1


def ops(graph: Graph) -> Counter[str]:
    definition = v1.GraphDef.FromString(graph.message().graph_def)
    bodies = (definition.node, *(function.node_def for function in definition.library.function))
    return Counter(node.op for nodes in bodies for node in nodes)


@pytest.fixture(params=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> Iterator[str]:
    with control_flow(request.param):
        yield request.param


def test_every_way_of_reading(variable: Callable[..., Any]) -> None:
    def build(ids: tf.Tensor) -> tf.Tensor:
        table = variable("table", (20, 3))
        rows = tf.gather(table, ids)
        cells = tf.gather_nd(table, tf.stack([ids, ids % 3], -1))
        batched = tf.gather(variable("batched", (2, 5)), tf.stack([ids[0] % 5, ids[0] % 4]), batch_dims=1)
        ready = v1.is_variable_initialized(table)
        sizes = tf.cast(tf.shape(table), tf.float32)
        whole = tf.reduce_sum(table) + tf.reduce_sum(sizes) + tf.cast(tf.size(table), tf.float32)
        return tf.cond(ready, lambda: tf.reduce_sum(rows, 2) + cells + whole + tf.reduce_sum(batched), lambda: cells)

    found = ops(check(build, dtype=tf.int32, low=0, high=20))
    assert not {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"} & found.keys()


def test_a_handle_that_is_passed_through_ops_that_do_nothing() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        weights, bias = (v1.get_variable(name, (4,), use_resource=True) for name in ("weights", "bias"))
        first, middle, second = tf.identity_n([weights.handle, x, bias.handle])
        second = tf.stop_gradient(tf.identity(second))
        read = [tf.raw_ops.ReadVariableOp(resource=one, dtype=tf.float32) for one in (first, second)]
        return middle * read[0] + read[1]

    check(build)


def test_a_reference_that_is_passed_through_ops_for_references() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        weights = v1.get_variable("weights", (4, 4), use_resource=False)
        same = tf.raw_ops.RefIdentity(input=weights._variable)  # the reference itself has no public name
        no, yes = tf.raw_ops.RefSwitch(data=same, pred=tf.reduce_sum(x) > 0)
        return tf.matmul(x, tf.identity(tf.raw_ops.RefMerge(inputs=[no, yes])[0]))

    found = ops(check(build))
    assert not [op for op in found if op.startswith("Ref")]


def test_one_of_several_functions_chosen_by_number() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        tables = [v1.get_variable(f"table_{at}", (4, 2), use_resource=True) for at in range(3)]
        branches = [lambda at=at: tf.matmul(x, tables[at]) + tables[0][1] for at in range(3)]
        return tf.switch_case(tf.cast(tf.reduce_sum(x) > 0, tf.int32) + 1, branches)

    v1.enable_control_flow_v2()
    found = ops(check(build))
    assert (found["StatelessCase"], found["Case"]) == (1, 0)


def test_functions_in_functions_that_return_a_variables_handle() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        table = v1.get_variable("table", (4, 4), use_resource=True)
        handle = tf.TensorSpec((), tf.resource)

        @tf.function(input_signature=[handle, tf.TensorSpec((None, 4))])
        def inner(given: tf.Tensor, rows: tf.Tensor) -> Any:
            return tf.matmul(rows, tf.raw_ops.ReadVariableOp(resource=given, dtype=tf.float32)), given

        @tf.function(input_signature=[tf.TensorSpec((None, 4)), handle])
        def outer(rows: tf.Tensor, given: tf.Tensor) -> Any:
            once, again = inner(given, rows)
            return inner(again, once)

        rows, again = outer(x, table.handle)
        return rows + tf.raw_ops.ReadVariableOp(resource=again, dtype=tf.float32)[0]

    found = ops(check(build))
    assert found["PartitionedCall"] > 0
    assert found["StatefulPartitionedCall"] == 0


def test_control_flow_v1_inside_of_a_function() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        table = v1.get_variable("table", (4, 4), use_resource=True)

        def body(rows: tf.Tensor, given: tf.Tensor) -> tf.Tensor:
            no, yes = tf.raw_ops.Switch(data=given, pred=tf.reduce_sum(rows) > 0)
            read = [tf.raw_ops.ReadVariableOp(resource=one, dtype=tf.float32) for one in (no, yes)]
            return tf.matmul(rows, tf.raw_ops.Merge(inputs=[read[0], -read[1]])[0])

        specs = [tf.TensorSpec((None, 4)), tf.TensorSpec((), tf.resource)]
        function = v1.wrap_function(body, specs)
        y = function(x, table.handle)
        draft = draft_of(graph, {"x": x}, {"y": y})
    values, rows = np.eye(4, dtype=np.float32) * 2, np.ones((1, 4), np.float32)
    found = finish(draft)
    np.testing.assert_array_equal(found([tf.constant(values)], {"x": tf.constant(rows)})["y"], -2 * rows)
    np.testing.assert_array_equal(found([tf.constant(values)], {"x": tf.constant(-rows)})["y"], -2 * rows)


def test_calls_stay_stateful_where_something_in_them_is() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        weights = v1.get_variable("weights", (4,), use_resource=True)
        noisy = tf.function(lambda rows: rows * weights + 0 * tf.random.uniform((4,)))
        quiet = tf.function(lambda rows: rows * weights)
        return noisy(x) + quiet(x)

    found = ops(check(build))
    assert (found["StatefulPartitionedCall"], found["PartitionedCall"]) == (1, 1)


# What cannot be lifted ------------------------------------------------------------------------------------------------

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


def test_a_reader_of_something_else_than_a_value_is_refused_by_name() -> None:
    def packed(x: tf.Tensor) -> tf.Tensor:
        weights = v1.get_variable("weights", (4,), use_resource=True)
        several = tf.raw_ops.Pack(values=[weights.handle, weights.handle])
        return x + tf.raw_ops.ReadVariableOp(resource=several[0], dtype=tf.float32)

    with pytest.raises(GraphError, match="Pack 'Pack' takes variable 'weights', and only reading"):
        check(packed)


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
