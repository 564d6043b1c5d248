"""Lifting: whatever way a variable is read, passed around and looked up, its value does the same as an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.graphs.draft import finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.lifting.lift import lift
from tests.support.v1_drafts import check, draft_of

v1 = tf.compat.v1


def ops(graph: Graph) -> Counter[str]:
    definition = v1.GraphDef.FromString(graph.message().graph_def)
    bodies = (definition.node, *(function.node_def for function in definition.library.function))
    return Counter(node.op for nodes in bodies for node in nodes)


@pytest.fixture(params=["control flow v1", "control flow v2"])
def control_flow(request: pytest.FixtureRequest) -> Iterator[str]:
    """Graphs of both kinds; the choice is TensorFlow's own global one, put back afterwards."""
    before = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if request.param.endswith("v2") else v1.disable_control_flow_v2)()
    yield request.param
    (v1.enable_control_flow_v2 if before else v1.disable_control_flow_v2)()


def test_a_loop_that_reads_variables(control_flow: str, variable: Callable[..., Any]) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        weights, bias = variable("weights", (4, 4)), variable("bias", (4,))

        def step(at: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return at + 1, tf.nn.relu(tf.matmul(state, weights) + bias)

        return tf.while_loop(lambda at, _: at < 3, step, (0, x))[1]

    found = ops(check(build))
    assert found["StatelessWhile"] == (control_flow == "control flow v2")
    assert found["While"] == 0


def test_a_condition_whose_branches_read_different_variables(control_flow: str, variable: Callable[..., Any]) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        left, right = variable("left", (4, 3)), variable("right", (4, 3))
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, left), lambda: tf.matmul(x, right) + left[0])

    found = ops(check(build))
    assert found["StatelessIf"] == (control_flow == "control flow v2")


def test_a_condition_in_a_loop_in_a_condition(control_flow: str, variable: Callable[..., Any]) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        weights, bias = variable("weights", (4, 4)), variable("bias", (4,))

        def step(at: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            odd = tf.equal(at % 2, 1)
            return at + 1, tf.cond(odd, lambda: tf.matmul(state, weights), lambda: state * bias + weights[1])

        def loop() -> Any:
            return tf.while_loop(lambda at, _: at < 5, step, (0, x))[1]

        return tf.cond(tf.reduce_mean(x) > 0.1, loop, lambda: x - bias)

    check(build)


def test_rows_looked_up_in_a_loop(control_flow: str, variable: Callable[..., Any]) -> None:
    def build(ids: tf.Tensor) -> tf.Tensor:
        table = variable("table", (20, 3))

        def read(at: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return at + 1, total + tf.gather(table, ids[:, at])

        return tf.while_loop(lambda at, _: at < 4, read, (0, tf.zeros((tf.shape(ids)[0], 3))))[1]

    check(build, dtype=tf.int32, low=0, high=20)


def test_a_loop_over_time_with_an_array_of_tensors(control_flow: str, variable: Callable[..., Any]) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        weights = variable("weights", (3, 2))
        array = v1.TensorArray(tf.float32, size=4)

        def step(at: tf.Tensor, state: tf.Tensor, done: Any) -> tuple[tf.Tensor, tf.Tensor, Any]:
            state = tf.tanh(tf.matmul(tf.concat([x[:, at, None], state], 1), weights))
            return at + 1, state, done.write(at, state)

        state = tf.zeros((tf.shape(x)[0], 2))
        return tf.while_loop(lambda at, *_: at < 4, step, (0, state, array))[2].stack()

    check(build)


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


def test_handles_that_meet_again_after_a_condition(control_flow: str) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        left, right = (v1.get_variable(name, (4, 4), use_resource=True) for name in ("left", "right"))
        either = tf.cond(tf.reduce_sum(x) > 0, lambda: left.handle, lambda: right.handle)
        return tf.matmul(x, tf.raw_ops.ReadVariableOp(resource=either, dtype=tf.float32))

    check(build)


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


def test_every_result_of_a_function_is_of_the_value_that_was_read() -> None:
    """Many, so that one would be left out or taken twice if they were changed while they are looked through."""
    count, graph_def = 200, v1.GraphDef()
    resource, number = tf.resource.as_datatype_enum, tf.float32.as_datatype_enum
    function = graph_def.library.function.add()
    function.signature.name = "reads"
    call = graph_def.node.add(name="call", op="PartitionedCall")
    call.attr["f"].func.name = "reads"
    for at in range(count):
        handle = graph_def.node.add(name=f"variable_{at}", op="VarHandleOp")
        handle.attr["dtype"].type = number
        handle.attr["shape"].shape.CopyFrom(tf.TensorShape([]).as_proto())
        call.input.append(handle.name)
        call.attr["Tin"].list.type.append(resource)
        call.attr["Tout"].list.type.append(number)
        function.signature.input_arg.add(name=f"handle_{at}", type=resource)
        function.signature.output_arg.add(name=f"value_{at}", type=number)
        read = function.node_def.add(name=f"read_{at}", op="ReadVariableOp", input=[f"handle_{at}"])
        read.attr["dtype"].type = number
        function.ret[f"value_{at}"] = f"read_{at}:value:0"
    lifted = lift(graph_def, {f"variable_{at}": tf.TensorSpec([]) for at in range(count)})
    (reads,) = lifted.library.function
    assert dict(reads.ret) == {f"value_{at}": f"read_{at}:output:0" for at in range(count)}
