"""A copy of part of a live graph is one of its own: it computes the same, is initialised, saved and trained apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.graphs.surgery import duplicate
from tests.support.copies import DATA, copy_values, dense, ready

v1 = tf.compat.v1
KEYS = v1.GraphKeys


def names(variables: list[tf.Variable]) -> list[str]:
    return [one.op.name for one in variables]


@pytest.mark.parametrize("resource", [False, True])
def test_a_copy_with_own_variables_is_initialised_saved_and_trained_apart(tmp_path: Path, resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)  # else all units may begin dead
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = dense(dense(x, 5, "one", resource=resource), 3, "two", resource=resource)
        copy = duplicate(y, x, scope="copy")
        loss = tf.reduce_sum(tf.square(copy.outputs[0] - 1.0))
        train = v1.train.AdamOptimizer(0.1).minimize(loss, var_list=list(copy.variables.values()))
    assert sorted(copy.variables) == ["one/bias", "one/kernel", "two/bias", "two/kernel"]
    assert all(type(one) is type(copy.originals[name]) for name, one in copy.variables.items())
    assert copy.inputs[0].name == "copy/x:0"
    with ready(graph) as session:
        feed = {x: DATA, copy.inputs[0]: DATA}
        before, other = session.run([y, copy.outputs[0]], feed)
        assert not np.array_equal(before, other)
        copy_values(session, copy)
        np.testing.assert_array_equal(*session.run([y, copy.outputs[0]], feed))
        saved = copy.saver().save(session, str(tmp_path / "copy"))
        assert {name for name, _ in tf.train.list_variables(saved)} == set(copy.variables)
        losses = [session.run([loss, train], feed)[0] for _ in range(20)]
        assert losses[-1] < losses[0]
        np.testing.assert_array_equal(session.run(y, feed), before)
        copy.saver().restore(session, saved)
        np.testing.assert_array_equal(session.run(copy.outputs[0], feed), before)


def test_a_copy_is_in_the_collections_its_source_is_in() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        hidden = dense(x, 5, "one", regularizer=lambda weights: 0.1 * tf.reduce_sum(weights * weights))
        moving = v1.get_variable("moving", [5], trainable=False, use_resource=True, collections=["mine", "variables"])
        v1.add_to_collection("ends", hidden)
        v1.add_to_collection(KEYS.UPDATE_OPS, moving.assign_sub(moving - tf.reduce_mean(hidden, 0)))
        v1.add_to_collection(KEYS.LOSSES, tf.reduce_sum(hidden - v1.placeholder(tf.float32, [], name="label")))
        v1.train.create_global_step()
        y = tf.identity(hidden + moving, name="y")
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(y))
        copy = duplicate(y, x, scope="copy")
        assert names(v1.trainable_variables("copy")) == ["copy/one/kernel", "copy/one/bias"]
        assert names(v1.global_variables("copy")) == ["copy/one/kernel", "copy/one/bias", "copy/moving"]
        assert graph.get_collection("mine")[1:] == [copy[moving]]
        assert [one.name for one in graph.get_collection("ends")] == ["one/Relu:0", "copy/one/Relu:0"]
        assert len(v1.losses.get_regularization_losses()) == 2
        assert [one.name.startswith("copy/") for one in graph.get_collection(KEYS.UPDATE_OPS)] == [False, True]
        assert len(graph.get_collection(KEYS.LOSSES)) == 1  # the loss needs a label, which the copy is not given
        assert len(graph.get_collection(KEYS.TRAIN_OP)) == 1
        assert v1.train.get_global_step() is not None
    with ready(graph) as session:
        session.run(graph.get_collection(KEYS.UPDATE_OPS)[1], {copy.inputs[0]: DATA})
        assert session.run(copy[moving]).any()


def test_a_copy_of_a_training_step_trains_its_own_variables() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        loss = tf.reduce_sum(dense(x, 3, "one"))
        step = v1.train.AdamOptimizer(0.1).minimize(loss, global_step=v1.train.create_global_step())
        copy = duplicate([step, loss], x, scope="copy")
        assert v1.train.get_global_step().op.name == "global_step"
    kernel = copy.originals["one/kernel"]
    with ready(graph) as session:
        before = session.run([kernel, copy[kernel]])
        session.run(copy.outputs[0], {copy.inputs[0]: DATA})
        after = session.run([kernel, copy[kernel]])
        assert session.run([copy.originals["global_step"], copy.variables["global_step"]]) == [0, 1]
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])


def test_shared_variables_are_the_originals() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = dense(x, 3, "one")
        known = v1.global_variables()
        copy = duplicate(y, variables="shared", replace={x: tf.constant(DATA) * 2})
        assert v1.global_variables() == known
        assert not copy.variables
        assert copy[known[0]].op is known[0].op
    with ready(graph) as session:
        np.testing.assert_array_equal(*session.run([y, copy.outputs[0]], {x: DATA * 2}))


def test_a_shared_variable_may_be_called_like_the_folder_of_another() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("w", [4, 4], use_resource=False)
        averages = tf.train.ExponentialMovingAverage(0.9)
        update = averages.apply([weights])  # in a reference variable w/ExponentialMovingAverage
        y = tf.matmul(x, weights) - 2 * tf.matmul(x, averages.average(weights))
        copy = duplicate(y, x, variables="shared")
    with ready(graph) as session:
        session.run(update)
        np.testing.assert_array_equal(*session.run([y, copy.outputs[0]], {x: DATA, copy.inputs[0]: DATA}))


@pytest.mark.parametrize("variables", ["own", "shared"])
@pytest.mark.parametrize("resource", [False, True])
def test_a_variable_is_replaced_by_a_variable_or_a_value_wherever_it_is_read(resource: bool, variables: Any) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        with v1.variable_scope("", use_resource=resource):
            weights = v1.get_variable("weights", [4, 4])
            same_kind = v1.get_variable("same", [4, 4])
        other_kind = v1.get_variable("other", [4, 4], use_resource=not resource)
        read = weights.value()
        y = tf.matmul(x, weights) + tf.nn.embedding_lookup(weights, [0])
        values: list[Any] = [same_kind, other_kind, tf.fill([4, 4], 2.0), np.full((4, 4), 2.0, np.float32)]
        copies = [duplicate(y, x, variables=variables, replace={weights: value}) for value in values]
        copies.append(duplicate(y, x, variables=variables, replace={read: values[2]}))
        fed = duplicate(y, [x, weights], variables=variables)
        assert not any(one.variables for one in [*copies, fed])
    with ready(graph) as session:
        filled = [session.run(one) if isinstance(one, tf.Variable) else np.full((4, 4), 2.0) for one in values]
        for copy, value in zip(copies, [*filled, filled[2]], strict=True):
            found = session.run(copy.outputs[0], {copy.inputs[0]: DATA})
            np.testing.assert_allclose(found, DATA @ value + value[0], rtol=1e-4, atol=1e-5)
        found = session.run(fed.outputs[0], {fed.inputs[0]: DATA, fed.inputs[1]: filled[2]})
        np.testing.assert_allclose(found, DATA @ filled[2] + filled[2][0], rtol=1e-4, atol=1e-5)


def test_a_tensor_in_the_middle_can_be_an_input_or_be_replaced() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        first, second = tf.split(x, 2, axis=1, name="split")
        y = first * second + first
        fed = duplicate(y, second, replace={x: tf.constant(DATA)})
        replaced = duplicate(y, [x], replace={"split:1": second * 2})
    assert fed.inputs[0].shape.as_list() == [None, 2]
    with v1.Session(graph=graph) as session:
        left, right = DATA[:, :2], DATA[:, 2:]
        np.testing.assert_array_equal(session.run(fed.outputs[0], {fed.inputs[0]: right}), left * right + left)
        found = session.run(replaced.outputs[0], {replaced.inputs[0]: DATA, x: DATA})
        np.testing.assert_array_equal(found, left * (right * 2) + left)


def test_an_initial_value_that_is_fed_is_fed_to_both() -> None:
    with tf.Graph().as_default() as graph:
        words = v1.placeholder(tf.float32, [9, 4], name="words")
        table = v1.Variable(words, name="table", use_resource=True)
        ids = v1.placeholder(tf.int32, [None], name="ids")
        copy = duplicate(tf.nn.embedding_lookup(table, ids), ids)
        with v1.Session() as session:
            value = np.ones((9, 4), np.float32)
            session.run(v1.global_variables_initializer(), {words: value})
            np.testing.assert_array_equal(session.run(copy[table]), value)
    assert graph is copy.graph


def test_the_parts_of_a_partitioned_variable_are_saved_as_one(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int32, [None], name="ids")
        table = v1.get_variable("table", [9, 4], partitioner=v1.fixed_size_partitioner(3))
        y = v1.nn.embedding_lookup(table, ids, partition_strategy="div")
        copy = duplicate(y, ids)
        saver = v1.train.Saver(v1.global_variables("table"))
    with ready(graph) as session:
        copy.saver().restore(session, saver.save(session, str(tmp_path / "model")))
        feed = {ids: [8, 0, 4], copy.inputs[0]: [8, 0, 4]}
        np.testing.assert_array_equal(*session.run([y, copy.outputs[0]], feed))
        assert dict(tf.train.list_variables(copy.saver().save(session, str(tmp_path / "copy")))) == {"table": [9, 4]}


def test_a_copy_goes_to_another_graph_and_another_device() -> None:
    with tf.Graph().as_default() as graph, tf.device("/GPU:0"):
        x = v1.placeholder(tf.int64, [None, 4], name="x")
        rows = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([7, 8], [1.0, 2.0], tf.int64), -1.0)
        doubled = tf.function(lambda one: one * 2)
        y = doubled(dense(rows.lookup(x), 3, "one"))
    other = tf.Graph()
    copy = duplicate(y, x, scope="copy", graph=other, device="/CPU:0")
    assert {one.device for one in other.get_operations()} == {"/device:CPU:0"}
    assert len(graph.get_collection(KEYS.GLOBAL_VARIABLES)) == len(other.get_collection(KEYS.GLOBAL_VARIABLES)) == 2
    with ready(other) as session:
        assert session.run(copy.outputs[0], {copy.inputs[0]: [[7, 8, 7, 9]]}).shape == (1, 3)
    here = duplicate(y, x, scope="copy", device="/CPU:0")
    assert here.variables["one/kernel"].device == "/device:CPU:0"
    assert copy["x"] is copy.inputs[0]


def test_graphs_without_collections_have_their_variables_copied_too() -> None:
    with tf.Graph().as_default() as first:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        dense(dense(x, 3, "one"), 3, "two", resource=False)
    with tf.Graph().as_default() as bare:
        tf.graph_util.import_graph_def(first.as_graph_def(), name="")
        copy = duplicate("two/Relu:0", "x")
        with v1.Session() as session:
            session.run(v1.variables_initializer(list(copy.variables.values())))
            assert session.run(copy.outputs[0], {copy.inputs[0]: DATA}).shape == (7, 3)
    assert bare is copy.graph


def test_declared_shapes_are_those_of_the_copy() -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, None, name="x")
        y = x * 1.0
        y.set_shape([None, 4])
        assert duplicate(y, x).outputs[0].shape.as_list() == [None, 4]


def test_scopes_around_the_call_do_not_reach_into_the_copy() -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = x * 2.0
        with v1.name_scope("outer"), tf.control_dependencies([y]), tf.device("/CPU:1"):
            copy = duplicate(y, x, scope="copy")
        again = duplicate(y, x, scope="copy")
        assert (copy.outputs[0].name, copy.outputs[0].op.control_inputs, copy.outputs[0].device) == (
            "copy/mul:0",
            [],
            "",
        )
        assert again.scope == "copy_1"


def constraint(weights: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(weights, 0.0, 1.0)


def test_a_constraint_holds_for_the_copy() -> None:
    with tf.Graph().as_default():
        weights = v1.get_variable("weights", [4], constraint=constraint)
        assert duplicate(weights)[weights].constraint is constraint
