"""A written gradient is copied with its operation, or refused; a copy that cannot be made adds nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.surgery import connect, duplicate, synchronise
from tests.support.v1_drafts import DATA, control_flow, dense, ready

v1 = tf.compat.v1
Array = npt.NDArray[Any]
Differentiable = Callable[[tf.Tensor, tf.Variable], tf.Tensor]


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


NETWORKS: dict[str, Differentiable] = {
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


def contents(graph: tf.Graph) -> tuple[int, int, dict[str, int]]:
    library = graph.as_graph_def().library
    collections = {key: len(graph.get_collection(key)) for key in graph.get_all_collection_keys()}
    return len(graph.get_operations()), len(library.function), collections


@contextmanager
def unchanged(*graphs: tf.Graph) -> Iterator[None]:
    before = [contents(one) for one in graphs]
    yield
    assert [contents(one) for one in graphs] == before


class Network:
    """A network, and tensors with which it cannot be copied."""

    def __init__(self) -> None:
        self.x = v1.placeholder(tf.float32, [None, 4], name="x")
        rate = v1.placeholder(tf.float32, [], name="rate")
        self.ids = v1.placeholder(tf.int32, [None], name="ids")
        self.y = tf.identity(tf.gather(dense(self.x, 3, "one") * rate, self.ids), name="y")
        v1.placeholder(tf.float32, [], name="unrelated")
        self.kernel = v1.global_variables()[0]
        self.ints, self.wide, self.small = tf.zeros([7, 4], tf.int32), tf.zeros([7, 5]), tf.zeros([3, 3])
        self.rows = [tf.ones([4]), tf.zeros([4])]
        with tf.Graph().as_default():
            self.elsewhere = tf.zeros([7, 4], name="elsewhere")


EAGER = tf.constant(1.0)
ALL = ["x", "rate", "ids"]
REFUSED: dict[str, tuple[Callable[[Network], Any], str]] = {
    "an unknown output": (
        lambda on: duplicate("one/Rleu", ALL),
        r"outputs: the graph has no tensor 'one/Rleu'; its placeholders: x, rate, ids, unrelated; similar: one/Relu",
    ),
    "an unfed placeholder": (
        lambda on: duplicate(on.y, "x"),
        "placeholder '(rate|ids)' is needed .* not among the inputs",
    ),
    "an input of no use": (
        lambda on: duplicate(on.y, [*ALL, "unrelated"]),
        "no output depends on 'unrelated:0'; the outputs: y:0",
    ),
    "another dtype": (
        lambda on: duplicate(on.y, ALL[1:], replace={on.x: on.ints}),
        r"'x:0' does not fit: expected float32 \(None, 4\), found int32 \(7, 4\)",
    ),
    "another shape": (
        lambda on: duplicate(on.y, ALL[1:], replace={on.x: on.wide}),
        r"'x:0' does not fit: expected float32 \(None, 4\), found float32 \(7, 5\)",
    ),
    "a variable's shape": (
        lambda on: duplicate(on.y, ALL, replace={on.kernel: on.small}),
        r"'one/kernel:0' does not fit: expected float32 \(4, 3\), found float32 \(3, 3\)",
    ),
    "several tensors": (
        lambda on: duplicate(on.y, ALL[1:], replace={on.x: on.rows}),
        r"'x:0' is no float32 tensor.* make one \(tf\.stack",
    ),
    "a rounded number": (
        lambda on: duplicate(on.y, ALL[:2], replace={on.ids: np.array([1.5])}),
        "'ids:0' would be rounded: expected int32, found float64",
    ),
    "an operation as input": (lambda on: duplicate(on.y, on.y.op), "'y' is an operation"),
    "an eager tensor": (lambda on: duplicate(on.y, EAGER), "inputs: expected a tensor or variable of a graph"),
    "tensors of two graphs": (lambda on: duplicate(on.y, on.elsewhere), "of another graph"),
    "a replacement of another graph": (
        lambda on: duplicate(on.y, ALL[1:], replace={on.x: on.elsewhere}),
        "not of the graph the copy goes to",
    ),
    "an input with a replacement": (
        lambda on: duplicate(on.y, ALL, replace={on.x: np.zeros((2, 4), np.float32)}),
        "'x:0' is among the inputs too",
    ),
    "two replacements": (
        lambda on: duplicate(on.y, ALL[1:], replace={"x": np.zeros((2, 4)), on.x: np.ones((2, 4))}),
        "'x:0' has two replacements",
    ),
    "sharing between graphs": (
        lambda on: duplicate(on.y, ALL, variables="shared", graph=tf.Graph()),
        "expected 'own', since graphs share no variables, found 'shared'",
    ),
    "no outputs": (lambda on: duplicate([], on.x), "expected outputs to copy, found none"),
    "a scope that is no name": (lambda on: duplicate(on.y, ALL, scope="a b"), "scope: expected .* found 'a b'"),
    "a tensor that was not copied": (
        lambda on: duplicate(on.y, ALL, graph=tf.Graph())["unrelated"],
        "'unrelated:0' is not part of the copy 'copy'",
    ),
    "a device that is none": (lambda on: duplicate(on.y, ALL, device="/nowhere:x"), "device: expected a name such as"),
    "a source without a name": (lambda _: connect([("", None)]), "sources: expected a .meta file.* found ''"),
    "another word": (lambda on: duplicate(on.y, ALL, variables="mine"), "expected 'own' or 'shared', found 'mine'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_copy_that_cannot_be_made_is_refused_and_nothing_added(what: str) -> None:
    call, message = REFUSED[what]
    with tf.Graph().as_default() as graph:
        network = Network()
        with unchanged(graph), pytest.raises(GraphError, match=message):
            call(network)


def test_a_copy_that_tensorflow_cannot_build_adds_nothing() -> None:
    with tf.Graph().as_default() as graph:
        shape = v1.placeholder(tf.int32, [2], name="shape")
        x = v1.placeholder(tf.float32, [3, 4], name="x")
        y = tf.function(lambda one: one * 2)(tf.reshape(x, shape)) * v1.get_variable("weights", [])
        new, other = tf.constant([5, 7]) // 1, tf.constant([5, 7]) // 2 + [0, 3]
        with unchanged(graph), pytest.raises(GraphError, match="the copy cannot be built"):
            duplicate(y, x, replace={shape: new})
        assert duplicate(y, x, replace={shape: other}).scope == "copy"  # the scope was not used up


def test_graphs_that_nothing_can_be_added_to_are_refused_and_copied_to_others() -> None:
    functions: list[tf.Graph] = []

    @tf.function
    def function(x: tf.Tensor) -> tf.Tensor:
        functions.append(x.graph)
        return x * 2.0

    function.get_concrete_function(tf.TensorSpec([], tf.float32))
    with tf.Graph().as_default() as finalised:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = tf.identity(dense(x, 3, "one"), name="y")
    finalised.finalize()
    for graph, message in ((finalised, "finalised"), (functions[0], "outside of tf.function")):
        with unchanged(finalised, graph):
            with pytest.raises(GraphError, match=f"graph: .*{message}"):
                duplicate(y, x, graph=graph)
            with pytest.raises(GraphError, match=f"graph: .*{message}"):
                connect([(finalised, None)], outputs=["y"], graph=graph)
    with finalised.as_default(), pytest.raises(GraphError, match="finalised"):
        synchronise(v1.trainable_variables(), v1.trainable_variables())
    with finalised.as_default():
        copy = duplicate("y", "x", graph=tf.Graph())
    with ready(copy.graph) as session:
        assert session.run(copy.outputs[0], {copy.inputs[0]: np.ones((2, 4))}).shape == (2, 3)


def test_a_variable_that_nothing_initialises_is_refused_by_name() -> None:
    with tf.Graph().as_default():
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[4], name="lonely")
        y = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) * 2
        with pytest.raises(GraphError, match="variable 'lonely' is in no collection"):
            duplicate(y)
        assert duplicate(y, variables="shared").outputs


def test_a_table_that_is_filled_at_run_time_is_not_copied_empty() -> None:
    with tf.Graph().as_default():
        words = v1.placeholder(tf.string, [None], name="words")
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, -1.0)
        filled = table.insert(tf.constant(["a"]), tf.constant([5.0]))
        y = tf.identity(table.lookup(words), name="y")
        assert duplicate(y, words).outputs  # in one graph, which shares the table
        target = tf.Graph()
        with unchanged(target), pytest.raises(GraphError, match="a copy in another graph would be empty"):
            duplicate(y, words, graph=target)
        v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, filled)
        copy = duplicate(y, words, graph=target)
    with target.as_default(), v1.Session() as session:
        session.run(v1.tables_initializer())
        np.testing.assert_array_equal(session.run(copy.outputs[0], {copy.inputs[0]: ["a", "b"]}), [5.0, -1.0])
