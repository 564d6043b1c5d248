"""Whatever is given wrongly to the surgery is refused with one error, which names it; nothing is added to any graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import ParamsyncError
from paramsync.graphs.surgery import connect, duplicate, synchronise
from tests.support.control_flow import control_flow
from tests.support.copies import dense, ready

v1 = tf.compat.v1


def contents(graph: tf.Graph) -> tuple[int, int, dict[str, int]]:
    library = graph.as_graph_def().library
    collections = {key: len(graph.get_collection(key)) for key in graph.get_all_collection_keys()}
    return len(graph.get_operations()), len(library.function), collections


@contextmanager
def unchanged(*graphs: tf.Graph) -> Iterator[None]:
    before = [contents(one) for one in graphs]
    yield
    assert [contents(one) for one in graphs] == before


class Live:
    """A graph with a copy, a graph beside it, and what people may mistake for something else."""

    def __init__(self, folder: Path) -> None:
        with tf.Graph().as_default() as self.graph:
            self.x = v1.placeholder(tf.float32, [None, 4], name="x")
            tf.function(lambda one: one * 2)(self.x)
            self.y = tf.identity(dense(self.x, 3, "one"), name="y")
            self.copy = duplicate(self.y, self.x, scope="first")
        with ready(self.graph) as session:
            self.checkpoint = v1.train.Saver(list(self.copy.originals.values())).save(session, str(folder / "live"))
        self.other = tf.Graph()
        self.apart = duplicate(self.y, self.x, graph=self.other)
        self.within = synchronise(self.copy.originals, self.copy)
        self.across = synchronise(self.graph, self.apart)
        with self.other.as_default():
            self.elsewhere = tf.zeros([7, 4], name="elsewhere")
        with tf.Graph().as_default() as self.finalised:
            tf.identity(dense(v1.placeholder(tf.float32, [None, 4], name="x"), 3, "one"), name="y")
        self.finalised.finalize()
        self.closed = v1.Session(graph=self.graph)
        self.closed.close()
        functions: list[tf.Graph] = []

        @tf.function
        def function(x: tf.Tensor) -> tf.Tensor:
            functions.append(x.graph)
            return x * 2.0

        function.get_concrete_function(tf.TensorSpec([], tf.float32))
        self.of_a_function = functions[0]
        self.wrong: dict[str, Any] = {
            "None": None,
            "a number": 5,
            "an empty name": "",
            "a name of nothing": "nothing:0",
            "an empty list": [],
            "a list of a number": [5],
            "an empty dict": {},
            "a dict": {"a": object()},
            "an object": object(),
            "a tensor of another graph": self.elsewhere,
            "an eager tensor": tf.constant(1.0),
            "an eager variable": tf.Variable(1.0),
            "the handle of an eager variable": tf.Variable(1.0).handle,
            "a Keras variable": keras.Variable(1.0),
            "a Keras tensor": keras.Input((4,)),
            "an array": np.zeros((2, 4)),
            "a closed session": self.closed,
            "a type": tf.Tensor,
            "bytes": b"x",
            "a set": {1, 2},
        }


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Live:
    return Live(tmp_path_factory.mktemp("live"))


def key(given: Any) -> Any:
    """What people write where a dict is to have this for a key."""
    if tf.is_tensor(given) and not isinstance(given, keras.Variable):
        return given.ref()
    return given if given.__hash__ else id(given)


Call = Callable[[Live, Any], Any]

ARGUMENTS: dict[str, tuple[Call, str, list[str]]] = {
    # what is called, what its error begins with, and what it may be given of the wrong things
    "outputs": (lambda on, it: duplicate(it, on.x), "outputs|inputs: 'x:0' is of another graph", []),
    "inputs": (lambda on, it: duplicate(on.y, it), "inputs|placeholder 'x'", []),
    "scope": (lambda on, it: duplicate(on.y, on.x, scope=it), "scope", []),
    "variables": (lambda on, it: duplicate(on.y, on.x, variables=it), "variables", []),
    "replace": (lambda on, it: duplicate(on.y, on.x, replace=it), "replace", ["None", "an empty dict"]),
    "a key of replace": (
        lambda on, it: duplicate(on.y, on.x, replace={key(it): 1.0}),
        "replace",
        [],
    ),
    "a replacement": (
        lambda on, it: duplicate(on.y, replace={on.x: it}),
        "replace",
        ["an array"],
    ),
    "keep_seeds": (lambda on, it: duplicate(on.y, on.x, keep_seeds=it), "keep_seeds", []),
    "graph": (lambda on, it: duplicate(on.y, on.x, graph=it), "graph", ["None"]),
    "device": (lambda on, it: duplicate(on.y, on.x, device=it), "device", ["None", "an empty name"]),
    "a part of a copy": (lambda on, it: on.copy[it], "the copy 'first'", []),
    "the name of a saver": (lambda on, it: on.copy.saver(name=it), "saver", ["None", "an empty name"]),
    "a source of values": (lambda on, it: synchronise(it, on.copy), "source|parameters of the source", []),
    "a target of values": (lambda on, it: synchronise(on.copy.originals, it), "target|parameters of the source", []),
    "values by name": (lambda on, it: synchronise({"a": it}, {"a": on.copy.variables["one/bias"]}), "source", []),
    "targets by name": (lambda on, it: synchronise({"a": on.copy.variables["one/bias"]}, {"a": it}), "target", []),
    "a session": (lambda on, it: on.within.run(it), "session", []),
    "a session of two": (lambda on, it: on.across.run(it, v1.Session(graph=on.other)), "session", []),
    "a second session": (lambda on, it: on.across.run(v1.Session(graph=on.graph), it), "target_session", []),
    "sources": (lambda on, it: connect(it), "sources", []),
    "a source": (lambda on, it: connect([(it, None)]), "sources|nothing:0", []),
    "a checkpoint": (lambda on, it: connect([(on.graph, it)], outputs=["y"]), "sources|the checkpoint", ["None"]),
    "inputs to connect": (
        lambda on, it: connect([(on.graph, None)], it, outputs=["y"]),
        "inputs",
        ["None", "an empty dict"],
    ),
    "an input to connect": (
        lambda on, it: connect([(on.graph, None)], {"x": it}, outputs=["y"]),
        "inputs|replace",
        ["an array"],
    ),
    "scopes": (lambda on, it: connect([(on.graph, None)], scopes=it, outputs=["y"]), "scopes", ["None"]),
    "a scope": (lambda on, it: connect([(on.graph, None)], scopes=[it], outputs=["y"]), "scopes", []),
    "outputs of connect": (lambda on, it: connect([(on.graph, None)], outputs=it), "outputs", ["None"]),
    "placeholders": (
        lambda on, it: connect([(on.graph, None)], outputs=["y"], placeholders=it),
        "placeholders",
        ["an empty list", "an empty dict"],
    ),
    "the graph to connect in": (lambda on, it: connect([(on.graph, None)], outputs=["y"], graph=it), "graph", ["None"]),
    "the device to connect on": (
        lambda on, it: connect([(on.graph, None)], outputs=["y"], device=it),
        "device",
        ["None", "an empty name"],
    ),
}


@pytest.mark.parametrize("what", ARGUMENTS)
def test_what_is_given_wrongly_is_refused_by_name_and_adds_nothing(what: str, live: Live) -> None:
    call, begins, right = ARGUMENTS[what]
    with tf.Graph().as_default() as default:
        for name, given in live.wrong.items():
            if name in right:
                continue
            with unchanged(live.graph, live.other, default):
                with pytest.raises(ParamsyncError) as refusal:
                    call(live, given)
                text = str(refusal.value)
                assert text.startswith(tuple(begins.split("|"))), f"{name}: {text}"
                assert len(text) < 800, name


def test_graphs_that_nothing_can_be_added_to_are_refused(live: Live) -> None:
    for graph, message in ((live.finalised, "finalised"), (live.of_a_function, "outside of tf.function")):
        with unchanged(live.graph, graph):
            with pytest.raises(ParamsyncError, match=f"graph: .*{message}"):
                duplicate(live.y, live.x, graph=graph)
            with pytest.raises(ParamsyncError, match=f"graph: .*{message}"):
                connect([(live.graph, None)], outputs=["y"], graph=graph)
    with live.finalised.as_default(), pytest.raises(ParamsyncError, match=r"graph=tf\.Graph"):
        duplicate("y", "x")
    with live.finalised.as_default(), pytest.raises(ParamsyncError, match="finalised"):
        synchronise(v1.trainable_variables(), v1.trainable_variables())


def test_a_finalised_graph_is_copied_to_another(live: Live) -> None:
    with live.finalised.as_default():
        copy = duplicate("y", "x", graph=tf.Graph())
        named = duplicate(v1.trainable_variables()[0], graph=tf.Graph())
    with ready(copy.graph) as session:
        assert session.run(copy.outputs[0], {copy.inputs[0]: np.ones((2, 4))}).shape == (2, 3)
    assert list(named.variables) == ["one/kernel"]


def test_one_tensor_is_given_but_once(live: Live) -> None:
    with unchanged(live.graph):
        with pytest.raises(ParamsyncError, match="'x:0' is among the inputs too"):
            duplicate(live.y, "x", replace={live.x: np.zeros((2, 4), np.float32)})
        with pytest.raises(ParamsyncError, match="'x:0' has two replacements"):
            duplicate(live.y, replace={"x": np.zeros((2, 4)), live.x: np.ones((2, 4))})


def test_sessions_are_those_of_the_graphs(live: Live) -> None:
    with v1.Session(graph=live.graph) as session, v1.Session(graph=live.other) as other:
        with pytest.raises(ParamsyncError, match=r"^session: expected a session of the graph"):
            live.across.run(other, session)
        with pytest.raises(ParamsyncError, match=r"^session: expected a session of the graph"):
            live.within.run(other)
        with pytest.raises(ParamsyncError, match=r"^target_session: .* expected none"):
            live.within.run(session, other)
        with pytest.raises(ParamsyncError, match=r"^session: .*closed"):
            live.within.run(live.closed)
        with pytest.raises(ParamsyncError, match=r"^session: .*closed"):
            live.across.run(live.closed, other)


def test_a_copy_that_cannot_be_built_adds_nothing() -> None:
    with tf.Graph().as_default() as graph:
        shape = v1.placeholder(tf.int32, [2], name="shape")
        x = v1.placeholder(tf.float32, [3, 4], name="x")
        y = tf.function(lambda one: one * 2)(tf.reshape(x, shape)) * v1.get_variable("weights", [])
        new, other = tf.constant([5, 7]) // 1, tf.constant([5, 7]) // 2 + [0, 3]
        with unchanged(graph), pytest.raises(ParamsyncError, match="the copy cannot be built"):
            duplicate(y, x, replace={shape: new})
        assert duplicate(y, x, replace={shape: other}).scope == "copy"  # the scope was not used up


def test_a_value_that_would_have_to_be_made_or_rounded_is_refused() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [2, 4], name="x")
        ids = v1.placeholder(tf.int32, [None], name="ids")
        y = tf.gather(x, ids)
        rows = [tf.ones([4]), tf.zeros([4])]
        parts = v1.get_variable("parts", [2, 4], partitioner=v1.fixed_size_partitioner(2))
        with unchanged(graph):
            for several in (rows, tuple(rows), parts):
                with pytest.raises(
                    ParamsyncError, match=r"replace: .*'x:0' is no float32 tensor.* make one \(tf\.stack"
                ):
                    duplicate(y, ids, replace={x: several})
            for fractions in ([0.5], np.array([1.5]), 1.5):
                with pytest.raises(ParamsyncError, match="'ids:0' would be rounded: expected int32, found float64"):
                    duplicate(y, x, replace={ids: fractions})
        whole = duplicate(y, x, replace={ids: [np.int64(1), 0]})
    with v1.Session(graph=graph) as session:
        assert session.run(whole.outputs[0], {whole.inputs[0]: np.eye(2, 4)}).tolist() == np.eye(2, 4)[::-1].tolist()


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_cut_at_the_end_of_a_loop_or_branch_leaves_it_out(version: str) -> None:
    with tf.Graph().as_default() as graph, control_flow(version):
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 4])
        _, y, z = tf.while_loop(
            lambda step, *_: step < 3, lambda step, y, z: (step + 1, y @ weights, z + y), [0, x, tf.zeros_like(x)]
        )
        branch = tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x)
        after = duplicate(y + 1, y)
        half = duplicate(y + z, [x, y], scope="half")  # the loop is there for z
        alone = duplicate(branch * 2, branch, scope="alone")
        (gradient,) = tf.gradients(half.outputs[0], half.inputs[0])
    assert not after.variables
    with ready(graph) as session:
        ones = np.ones((2, 4), np.float32)
        assert session.run(after.outputs[0], {after.inputs[0]: ones}).tolist() == (ones + 1).tolist()
        assert session.run(alone.outputs[0], {alone.inputs[0]: ones}).tolist() == (ones * 2).tolist()
        feed = dict.fromkeys(half.inputs, ones)
        kernel, found, slope = session.run([half.variables["weights"], half.outputs[0], gradient], feed)
    np.testing.assert_allclose(found, ones + ones + ones @ kernel + ones @ kernel @ kernel, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(slope, ones + ones @ kernel.T + ones @ kernel.T @ kernel.T, rtol=1e-4, atol=1e-5)


def test_scopes_are_free_even_where_nodes_of_them_were_imported() -> None:
    with tf.Graph().as_default() as first:
        x = v1.placeholder(tf.float32, [None], name="x")
        duplicate(tf.identity(x * 2.0, name="y"), x)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(first.as_graph_def(), name="")
        assert duplicate("y", "x").scope == "copy_1"


def test_a_name_that_is_taken_by_a_placeholder_is_free_for_the_rest() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [2], name="x")
        middle = tf.multiply(x, 2.0, name="middle")
        y = tf.add(tf.identity(middle, name="middle_input") * tf.identity(x, name="given"), 1.0)
        copy = duplicate([y, middle], [middle], replace={x: np.array([1, 2], np.float32)})
    with v1.Session(graph=graph) as session:
        assert session.run(copy.outputs[0], {copy.inputs[0]: [3.0, 4.0]}).tolist() == [4.0, 9.0]
