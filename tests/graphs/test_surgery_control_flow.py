"""Loops, branches and initial values are copied whole, with what they read and with their gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.surgery import duplicate
from tests.support.control_flow import control_flow as built_with
from tests.support.copies import DATA, copy_values, ready

v1 = tf.compat.v1


@pytest.fixture(params=["control flow v1", "control flow v2"])
def control_flow(request: pytest.FixtureRequest) -> Iterator[str]:
    with built_with(request.param.removeprefix("control flow ")):
        yield request.param


@pytest.mark.parametrize("resource", [False, True])
def test_loops_and_branches_are_copied_with_their_gradients(control_flow: str, resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        with v1.variable_scope("", use_resource=resource):
            weights = v1.get_variable("weights", [4, 4])
            table = v1.get_variable("table", [9, 4])

        def body(step: tf.Tensor, unused: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, ...]:
            state = tf.cond(
                tf.equal(step % 2, 0),
                lambda: tf.tanh(tf.matmul(state, weights)),
                lambda: state + tf.nn.embedding_lookup(table, [step]) @ weights,
            )
            return step + 1, unused + 1, state

        *_, y = tf.while_loop(lambda step, *_: step < 3, body, [0, 0, x])
        wanted = tf.gradients(y, [x, weights, table])  # what a gradient adds to a loop is not part of the output
        copy = duplicate(y, x)
        shared = duplicate(y, x, variables="shared")
        gradients = tf.gradients(copy.outputs[0], [copy.inputs[0], copy[weights], copy[table]])
        others = tf.gradients(shared.outputs[0], [shared.inputs[0], weights, table])
        again = duplicate(copy.outputs[0], copy.inputs[0], scope="again")
        wanted, gradients, others = (
            [tf.convert_to_tensor(one) for one in each] for each in (wanted, gradients, others)
        )
    with ready(graph) as session:
        feed = dict.fromkeys([x, copy.inputs[0], shared.inputs[0], again.inputs[0]], DATA)
        copy_values(session, copy)
        copy_values(session, again)
        found = session.run([y, copy.outputs[0], shared.outputs[0], again.outputs[0]], feed)
        for one in found[1:]:
            np.testing.assert_array_equal(one, found[0])
        for expected, *rest in zip(*session.run([wanted, gradients, others], feed), strict=True):
            for one in rest:
                np.testing.assert_array_equal(one, expected)


def test_a_replaced_variable_is_replaced_within_a_loop(control_flow: str) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 4], use_resource=True)
        _, y = tf.while_loop(lambda step, _: step < 2, lambda step, one: (step + 1, one @ weights), [0, x])
        value = tf.constant(DATA[:4])
        copy = duplicate(y, x, replace={weights: value})
        (gradient,) = tf.gradients(copy.outputs[0], value)
    with v1.Session(graph=graph) as session:
        found, _ = session.run([copy.outputs[0], gradient], {copy.inputs[0]: DATA})
    np.testing.assert_allclose(found, DATA @ DATA[:4] @ DATA[:4], rtol=1e-4)


@pytest.mark.parametrize("control_flow", ["control flow v1"], indirect=True)
def test_initial_values_that_read_other_variables_read_their_copies(control_flow: str) -> None:
    with tf.Graph().as_default() as graph:
        first = v1.Variable(tf.random.normal([4]), name="first", use_resource=False)
        second = v1.Variable(first.initialized_value() * 2, name="second", use_resource=False)
        copy = duplicate(second.value())
    assert sorted(copy.variables) == ["first", "second"]
    with ready(graph) as session:
        one, two, original = session.run([copy[first], copy[second], first])
    np.testing.assert_array_equal(two, one * 2)
    assert not np.array_equal(one, original)


@pytest.mark.parametrize("control_flow", ["control flow v1"], indirect=True)
def test_a_tensor_within_a_loop_cannot_be_cut_out_of_it(control_flow: str) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [4], name="x")
        _, y = tf.while_loop(lambda step, _: step < 2, lambda step, one: (step + 1, one * 2), [0, x])
        within = next(one for one in graph.get_operations() if one.type == "Mul").outputs[0]
        with pytest.raises(GraphError, match="lies within a loop or branch"):
            duplicate(y, [x, within])
        with pytest.raises(GraphError, match="lies within a loop or branch"):
            duplicate(within, x)
