"""A written gradient is copied with its operation, or refused: it never reads the tensors of the original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.surgery import connect, duplicate
from tests.support.control_flow import control_flow
from tests.support.copies import DATA, ready

v1 = tf.compat.v1
Array = npt.NDArray[Any]
Network = Callable[[tf.Tensor, tf.Variable], tf.Tensor]


@tf.custom_gradient
def reversed_gradient(x: tf.Tensor) -> Any:
    return tf.identity(x), lambda above: -2.0 * above


@tf.custom_gradient
def two_results(x: tf.Tensor, scale: tf.Tensor) -> Any:
    def gradient(first: tf.Tensor, second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rounds = tf.while_loop(lambda at, _: at < 3, lambda at, one: (at + 1, one * 2.0), [0, first])[1]
        return rounds * scale / 8.0 + second, tf.reduce_sum(first * x)

    return (x * scale, x + 0.0), gradient


def several(x: tf.Tensor, weights: tf.Variable) -> tf.Tensor:
    first, second = two_results(x @ weights, tf.constant(3.0, x.dtype))
    return first * second


def recomputed(x: tf.Tensor, weights: tf.Variable) -> tf.Tensor:
    return tf.recompute_grad(lambda one: tf.tanh(tf.nn.swish(one @ weights)) * 2)(x @ weights)


NETWORKS: dict[str, Network] = {
    "silu twice": lambda x, weights: tf.nn.silu(tf.nn.silu(x @ weights) @ weights),
    "recompute_grad": recomputed,
    "several results": several,
}


def numeric(session: Any, loss: tf.Tensor, feed: dict[Any, Any], over: tf.Tensor) -> Array:
    """The gradient of a loss over a fed tensor, by finite differences."""
    found: Array = np.zeros_like(feed[over])
    for at in np.ndindex(*found.shape):
        for sign in (1, -1):
            moved = np.array(feed[over], np.float64)
            moved[at] += sign * 1e-5
            found[at] += sign * session.run(loss, {**feed, over: moved}) / 2e-5
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradients_of_a_copy_are_those_of_what_it_computes(name: str) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float64, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 4], tf.float64, use_resource=True)
        y = NETWORKS[name](x, weights)
        own, shared = duplicate(y, x, scope="own"), duplicate(y, x, scope="shared", variables="shared")
        again = duplicate(own.outputs[0], own.inputs[0], scope="again")
        values = v1.placeholder(tf.float64, [4, 4], name="values")
        replaced = duplicate(y, x, scope="replaced", replace={weights: values})
        apart = duplicate(y, x, graph=tf.Graph())
        wanted = gradients(y, x, weights)[1]
        found = [
            (own, gradients(own.outputs[0], own.inputs[0], own[weights])),
            (shared, gradients(shared.outputs[0], shared.inputs[0], weights)),
            (again, gradients(again.outputs[0], again.inputs[0], again[own[weights]])),
            (replaced, gradients(replaced.outputs[0], replaced.inputs[0], values)),
        ]
        assert len(v1.global_variables()) == 3
    kernel = DATA[:4].astype(np.float64)
    rows = DATA[:3].astype(np.float64)
    with ready(graph) as session:
        for copy, (loss, (by_x, by_weights)) in found:
            feed = {copy.inputs[0]: rows, values: kernel}
            for gradient, over in [(by_x, copy.inputs[0])] + [(by_weights, values)] * (copy is replaced):
                expected = numeric(session, loss, feed, over)
                np.testing.assert_allclose(session.run(gradient, feed), expected, rtol=1e-5, atol=1e-7)
        original, same = session.run([wanted, found[1][1][1]], {x: rows, shared.inputs[0]: rows})
        for one, another in zip(original, same, strict=True):
            np.testing.assert_array_equal(one, another)
    with apart.graph.as_default():
        loss, (by_x, by_weights) = gradients(apart.outputs[0], apart.inputs[0], apart[weights])
    with ready(apart.graph) as session:
        feed = {apart.inputs[0]: rows}
        expected = numeric(session, loss, feed, apart.inputs[0])
        np.testing.assert_allclose(session.run(by_x, feed), expected, rtol=1e-5, atol=1e-7)
        assert np.abs(session.run(by_weights, feed)).sum() > 0


def gradients(y: tf.Tensor, *over: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
    loss = tf.reduce_sum(tf.square(y))
    return loss, [tf.convert_to_tensor(one) for one in tf.gradients(loss, list(over))]


def test_a_gradient_that_is_not_the_derivative_is_the_one_that_was_written() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        copy = duplicate(reversed_gradient(x * 3.0), x)
        (found,) = tf.gradients(copy.outputs[0], copy.inputs[0])
    with v1.Session(graph=graph) as session:
        assert set(session.run(found, {copy.inputs[0]: DATA}).flat) == {-6.0}
    with tf.Graph().as_default() as other:
        tf.graph_util.import_graph_def(graph.as_graph_def(), name="")  # an import has only the name of the gradient
        with pytest.raises(GraphError, match="has a gradient that somebody wrote"):
            tf.gradients(other.get_tensor_by_name("copy/IdentityN:0"), other.get_tensor_by_name("copy/x:0"))


class Within:
    """Calls of swish in a function, a loop and a branch."""

    @staticmethod
    def a_function(x: tf.Tensor) -> tf.Tensor:
        return tf.function(lambda one: tf.nn.swish(one) * 2)(x)

    @staticmethod
    def a_loop(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda step, _: step < 2, lambda step, one: (step + 1, tf.nn.swish(one)), [0, x])[1]

    @staticmethod
    def a_branch(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.swish(x), lambda: x)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("where", [Within.a_function, Within.a_loop, Within.a_branch])
def test_what_cannot_be_differentiated_rightly_is_refused_and_computes_all_the_same(
    where: Callable[[tf.Tensor], tf.Tensor], version: str
) -> None:
    with tf.Graph().as_default() as graph, control_flow(version):
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = where(x)
        copy = duplicate(y, x)
        assert tf.gradients(y, x)[0] is not None
        with pytest.raises(GraphError, match="has a gradient that somebody wrote"):
            tf.gradients(copy.outputs[0], copy.inputs[0])
    with v1.Session(graph=graph) as session:
        np.testing.assert_array_equal(*session.run([y, copy.outputs[0]], {x: DATA, copy.inputs[0]: DATA}))


def test_a_gradient_in_a_graph_that_takes_no_more_is_refused() -> None:
    with tf.Graph().as_default() as source:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = tf.nn.swish(x)
    source.finalize()
    copy = duplicate(y, x, graph=tf.Graph())
    with copy.graph.as_default(), pytest.raises(GraphError, match=r"cannot be copied: .* finalised"):
        tf.gradients(copy.outputs[0], copy.inputs[0])


def test_numbers_that_are_drawn_again_are_the_same_or_refused() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float64, [None, 4], name="x")

        @tf.recompute_grad
        def dropped(one: tf.Tensor) -> tf.Tensor:
            return one * one * tf.random.stateless_uniform([4], [1, 2], dtype=tf.float64)

        y = dropped(x)
        kept, fresh = duplicate(y, x, scope="kept", keep_seeds=True), duplicate(y, x, scope="fresh")
        loss, (found,) = gradients(kept.outputs[0], kept.inputs[0])
        with pytest.raises(GraphError, match="keep_seeds=True"):
            tf.gradients(fresh.outputs[0], fresh.inputs[0])
    with v1.Session(graph=graph) as session:
        feed = {kept.inputs[0]: DATA[:2].astype(np.float64)}
        expected = numeric(session, loss, feed, kept.inputs[0])
        np.testing.assert_allclose(session.run(found, feed), expected, rtol=1e-5, atol=1e-7)


def test_a_meta_graph_refuses_gradients_that_it_does_not_know(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        tf.identity(tf.nn.swish(x * v1.get_variable("scale", [])), name="y")
        v1.train.export_meta_graph(str(tmp_path / "model.meta"))
    with tf.Graph().as_default():
        whole = connect([(tmp_path / "model.meta", None)], outputs=["y"])
        with pytest.raises(GraphError, match=r"has a gradient that somebody wrote.* MetaGraphDef"):
            v1.train.GradientDescentOptimizer(0.1).minimize(whole.outputs["graph1/y"])
