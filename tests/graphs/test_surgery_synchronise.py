"""A copy of a network in v1 graphs follows the original, in the same graph or from session to session."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, ParameterError
from paramsync.graphs.surgery import duplicate, synchronise

v1 = tf.compat.v1
DATA = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)


@pytest.mark.parametrize("resource", [False, True])
def test_a_copy_in_the_same_graph_follows_by_an_op(resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 3], use_resource=resource)
        y = tf.matmul(x, weights)
        step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(y))
        copy = duplicate(y, x, device="/CPU:0")
        both = synchronise(copy.originals, copy)
        back = synchronise(copy, copy.originals)
        init = v1.global_variables_initializer()
    with v1.Session(graph=graph) as session:
        session.run(init)
        session.run(step, {x: DATA})
        both.run(session)
        np.testing.assert_array_equal(*session.run([weights, copy[weights]]))
        session.run(step, {x: DATA})
        before = session.run(copy[weights])
        session.run(back.op)
        np.testing.assert_array_equal(session.run(weights), before)


def test_a_copy_in_another_graph_follows_from_session_to_session() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 3])
        y = tf.matmul(x, weights)
        init = v1.global_variables_initializer()
    serving = tf.Graph()
    copy = duplicate(y, x, graph=serving)
    both = synchronise(graph, copy)
    with v1.Session(graph=graph) as trains, v1.Session(graph=serving) as serves:
        trains.run(init)
        both.run(trains, serves)
        np.testing.assert_array_equal(trains.run(weights), serves.run(copy[weights]))
        with pytest.raises(GraphError, match="expected a session of each"):
            both.run(trains)


def test_variables_that_do_not_pair_are_not_synchronised() -> None:
    with tf.Graph().as_default():
        small, large = v1.get_variable("small", [2]), v1.get_variable("large", [3])
        with pytest.raises(ParameterError, match=r"'a': expected float32 \(3,\), found float32 \(2,\)"):
            synchronise({"a": small}, {"a": large})
        with pytest.raises(ParameterError, match="expected 1 variables: b, found 1 variables: a"):
            synchronise({"a": small}, {"b": small})
        with pytest.raises(ParameterError, match="expected 2 variables: large, small, found 1 variables: small"):
            synchronise([small], [small, large])
        with pytest.raises(GraphError, match="target: expected variables, found none"):
            synchronise([], [])
    with tf.Graph().as_default():
        other = v1.get_variable("other", [2])
        with pytest.raises(GraphError, match="of several graphs"):
            synchronise([small, other], [small, small])
