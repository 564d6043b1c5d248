"""A copy has the gradients that its original has, whatever part of the original's loops it needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.graphs.surgery import Copy, duplicate
from tests.support.control_flow import control_flow
from tests.support.copies import copy_values, ready
from tests.support.v1_loops import LOOPS

v1 = tf.compat.v1
SEQUENCES = np.random.default_rng(0).normal(size=(7, 5, 4)).astype(np.float32)


def gradients_of(y: tf.Tensor, over: list[Any]) -> list[tf.Tensor]:
    """Those of a loss of `y`; all of them are there."""
    found = tf.gradients(tf.reduce_sum(tf.square(y - 1.0)), over)
    assert not [one for one, gradient in zip(over, found, strict=True) if gradient is None]
    return [tf.convert_to_tensor(one) for one in found]


@pytest.mark.parametrize(
    ("name", "loops"), [*((name, "v1") for name in LOOPS), ("last_outputs", "v2"), ("nested", "v2")]
)
def test_copies_of_loops_have_the_gradients_of_the_originals(name: str, loops: str) -> None:
    with tf.Graph().as_default() as graph, control_flow(loops):
        x = v1.placeholder(tf.float32, [None, 5, 4], name="x")
        y = LOOPS[name](x)
        variables = v1.trainable_variables()
        own, shared = duplicate(y, x, scope="own"), duplicate(y, x, scope="shared", variables="shared")
        found = [
            gradients_of(own.outputs[0], [own.inputs[0], *(own[one] for one in variables)]),
            gradients_of(shared.outputs[0], [shared.inputs[0], *variables]),
        ]
        wanted = gradients_of(y, [x, *variables])
    assert_same(graph, [own, shared], wanted, found, x)


@pytest.mark.parametrize("name", ["last_outputs", "nested"])
def test_copies_of_copies_and_of_what_was_differentiated_have_them_too(name: str) -> None:
    with tf.Graph().as_default() as graph, control_flow("v1"):
        x = v1.placeholder(tf.float32, [None, 5, 4], name="x")
        y = LOOPS[name](x)
        variables = v1.trainable_variables()
        wanted = gradients_of(y, [x, *variables])
        after = duplicate(y, x, scope="after")
        found = [gradients_of(after.outputs[0], [after.inputs[0], *(after[one] for one in variables)])]
        again = duplicate(after.outputs[0], after.inputs[0], scope="again")
        found.append(gradients_of(again.outputs[0], [again.inputs[0], *(again[after[one]] for one in variables)]))
    assert_same(graph, [after, again], wanted, found, x)


def assert_same(graph: tf.Graph, copies: list[Copy], wanted: Any, found: list[Any], x: tf.Tensor) -> None:
    with ready(graph) as session:
        for one in copies:
            copy_values(session, one)
        feed = dict.fromkeys([x, *(one.inputs[0] for one in copies)], SEQUENCES)
        expected, *others = session.run([wanted, *found], feed)
    assert all(np.abs(one).sum() > 0 for one in expected)
    for other in others:
        for one, another in zip(expected, other, strict=True):
            np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize("name", ["last_outputs", "accumulator"])
def test_a_copy_with_a_loop_is_trained_to_the_same_values_as_its_original(name: str) -> None:
    with tf.Graph().as_default() as graph, control_flow("v1"):
        x = v1.placeholder(tf.float32, [None, 5, 4], name="x")
        y = LOOPS[name](x)
        copy = duplicate(y, x)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        steps = [
            optimizer.minimize(tf.reduce_mean(tf.square(end - 1.0)), var_list=list(variables))
            for end, variables in ((y, copy.originals.values()), (copy.outputs[0], copy.variables.values()))
        ]
    with ready(graph) as session:
        copy_values(session, copy)
        before = session.run(copy.variables)
        for _ in range(3):
            session.run(steps, {x: SEQUENCES, copy.inputs[0]: SEQUENCES})
        trained, expected = session.run([copy.variables, copy.originals])
    for variable, value in trained.items():
        np.testing.assert_array_equal(value, expected[variable])
        assert not np.array_equal(value, before[variable])
