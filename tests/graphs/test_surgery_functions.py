"""Functions are copied with their gradients, their noise and what they do beside their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync.graphs.surgery import duplicate
from tests.support.copies import DATA, copy_values, ready

v1 = tf.compat.v1
Array = npt.NDArray[Any]


def noisy(x: tf.Tensor) -> tf.Tensor:
    noise = tf.function(lambda one: one + tf.random.uniform([4], seed=3))
    return tf.function(lambda one: noise(one) * 2)(x) + tf.random.normal([4], seed=4)


def test_random_ops_and_initial_values_get_fresh_seeds_unless_they_are_to_be_kept() -> None:
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4], initializer=v1.random_normal_initializer(seed=5))
        with_stateless = v1.get_variable("stateless", initializer=tf.random.stateless_uniform([4], seed=[1, 2]))
        y = noisy(x)
        z = weights + with_stateless
        fresh, kept = duplicate([y, z], x, scope="fresh"), duplicate([y, z], x, scope="kept", keep_seeds=True)
        other = duplicate([y, z], x, scope="other")
    with ready(graph) as session:
        feed = dict.fromkeys([x, fresh.inputs[0], kept.inputs[0], other.inputs[0]], DATA)
        values = session.run(
            [
                [weights, with_stateless, y],
                *([copy[weights], copy[with_stateless], copy.outputs[0]] for copy in (kept, fresh, other)),
            ],
            feed,
        )
    for same, *different in zip(*values, strict=True):
        np.testing.assert_array_equal(same, different[0])
        assert not np.array_equal(same, different[1])
        assert not np.array_equal(different[1], different[2])


def test_fresh_seeds_are_the_same_when_the_copy_is_made_again() -> None:
    def values() -> Array:
        with tf.Graph().as_default() as graph:
            v1.set_random_seed(1)
            weights = v1.get_variable("weights", [4])
            copy = duplicate(weights, scope="fresh")
        with ready(graph) as session:
            found: Array = session.run(copy.outputs[0])
            return found

    np.testing.assert_array_equal(values(), values())


class Functions:
    """What people write with tf.function, called from a v1 graph."""

    def __init__(self, weights: tf.Variable) -> None:
        self.weights = weights
        self.inner = tf.function(lambda one: tf.nn.softplus(one @ self.weights))

    @tf.function
    def loop(self, x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = self.inner(x) if tf.reduce_sum(x) > 0 else tf.split(x, 2, axis=1)[1] @ self.weights[:2]
        return x

    @tf.function
    def noisy(self, x: tf.Tensor) -> tf.Tensor:
        return self.inner(x) * tf.random.uniform([4], seed=3)

    @tf.function
    def counting(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values, at = tf.nn.top_k(x @ self.weights, 2)
        self.weights.assign_add(tf.ones_like(self.weights))
        return values, at


@pytest.mark.parametrize("name", ["inner", "loop", "noisy"])
@pytest.mark.parametrize("differentiated", [False, True])
def test_functions_in_a_copy_have_the_gradients_that_they_have_in_its_source(name: str, differentiated: bool) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 4], use_resource=True)
        functions = Functions(weights)  # a method of tf.function's keeps no hold on it
        y = getattr(functions, name)(x)
        if differentiated:
            tf.gradients(y, weights)  # the source's call gives more from now on
        copy = duplicate(y, x, keep_seeds=True)
        fresh = duplicate(y, x)
        elsewhere = duplicate(y, x, graph=tf.Graph())
        gradients = [*tf.gradients(y, [x, weights]), *tf.gradients(copy.outputs[0], [copy.inputs[0], copy[weights]])]
        (other,) = tf.gradients(fresh.outputs[0], fresh[weights])
    with elsewhere.graph.as_default():
        (there,) = tf.gradients(elsewhere.outputs[0], elsewhere[weights])
    with ready(graph) as session:
        copy_values(session, copy)
        feed = dict.fromkeys([x, copy.inputs[0], fresh.inputs[0]], np.abs(DATA))
        found = session.run([*gradients, y, copy.outputs[0], other], feed)
    for one, another in ((0, 2), (1, 3), (4, 5)):
        np.testing.assert_allclose(found[one], found[another], rtol=1e-6)
    assert np.abs(found[6]).sum() > 0
    with ready(elsewhere.graph) as session:
        assert np.abs(session.run(there, {elsewhere.inputs[0]: np.abs(DATA)})).sum() > 0


def test_what_a_function_does_beside_its_results_is_done_by_the_copy() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 4], use_resource=True, initializer=v1.zeros_initializer())
        functions = Functions(weights)
        _, at = functions.counting(x)
        copy = duplicate(at, x)
    with ready(graph) as session:
        assert session.run(copy.outputs[0], {copy.inputs[0]: DATA}).shape == (7, 2)
        np.testing.assert_array_equal(session.run(copy[weights]), np.ones((4, 4)))
        np.testing.assert_array_equal(session.run(weights), np.zeros((4, 4)))
