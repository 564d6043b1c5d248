"""Two Graphs become one: it computes what both compute one after the other, with the parameters of both."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, UnknownSignatureError
from paramsync.graphs.capturing import Capture, capture
from paramsync.graphs.draft import finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.joining import join
from paramsync.graphs.parameters import arrange
from tests.support.control_flow import control_flow
from tests.support.tables import find, table_graph
from tests.support.v1_drafts import draft_of

X = np.random.default_rng(7).standard_normal((7, 4)).astype(np.float32)


def dense(name: str, *, into: int = 3) -> keras.Model:
    inputs = keras.Input((4,), name="x")
    return keras.Model(inputs, {"features": keras.layers.Dense(into, "relu", name=name)(inputs)})


def head_model() -> keras.Model:
    inputs, scale = keras.Input((3,), name="x"), keras.Input((1,), name="scale")
    return keras.Model([inputs, scale], {"y": keras.layers.Dense(2, name="last")(inputs) * scale})


def named(prefix: str, captured: Capture) -> dict[str, tf.Variable]:
    pairs = zip(captured.graph.parameters, captured.variables, strict=True)
    return {f"{prefix}/{spec.name}": variable for spec, variable in pairs}


def test_an_encoder_and_a_head_compute_what_they_compute_one_after_the_other() -> None:
    encoder, head = dense("first"), head_model()
    of_encoder, of_head = capture(encoder), capture(head)
    whole = join(of_encoder.graph, of_head.graph, {"x": "features"}, prefixes=("encoder", "head"))
    signature = whole.signatures["serving_default"]
    assert (list(signature.inputs), list(signature.outputs)) == (["x", "scale"], ["y"])
    values = named("encoder", of_encoder) | named("head", of_head)
    assert [spec.name for spec in whole.parameters] == sorted(values)
    scale = np.full((len(X), 1), 3.0, np.float32)
    expected = head([encoder(X)["features"], tf.constant(scale)])["y"]
    given = {"x": tf.constant(X), "scale": tf.constant(scale)}
    assert np.array_equal(whole(arrange(whole, values), given)["y"], expected)
    again = Graph.from_bytes(whole.to_bytes())
    assert (again.digest, np.array_equal(again(arrange(again, values), given)["y"], expected)) == (whole.digest, True)


def test_a_graph_connected_with_itself_has_two_sets_of_parameters() -> None:
    model, other = dense("one", into=4), dense("one", into=4)
    one, two = capture(model), capture(other)
    assert one.graph.digest == two.graph.digest
    whole = join(one.graph, one.graph, {"x": "features"}, prefixes=("a", "b"), outputs=["features"])
    values = named("a", one) | named("b", two)
    found = whole(arrange(whole, values), {"x": tf.constant(X)})
    first = model(X)["features"]
    assert np.array_equal(found["a/features"], first)
    assert np.array_equal(found["b/features"], other(first)["features"])


def test_functions_with_written_gradients_are_joined() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def swish(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.while_loop(lambda at, _: at < 2, lambda at, y: (at + 1, tf.nn.swish(y)), [0, x])[1]}

    x = tf.constant([0.5, 2.0])
    graph = capture(swish).graph
    np.testing.assert_array_equal(join(graph, graph, {"x": "y"})([], {"x": x})["y"], swish(swish(x)["y"])["y"])


def test_old_loops_of_both_stay_apart() -> None:
    rounds = old_loop()
    whole = join(rounds, rounds, {"x": "y"}, outputs=["y"])
    found = whole([], {"x": tf.constant(1.0)})
    assert (float(found["first/y"]), float(found["second/y"])) == (128.0, 128.0 * 128.0)


@control_flow("v1")
def old_loop() -> Graph:
    """x times two to the seventh, in a loop of TensorFlow 1."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [], name="x")
        _, y = tf.while_loop(lambda at, _: at < 7, lambda at, y: (at + 1, y * 2.0), [0, x])
        return finish(draft_of(graph, {"x": x}, {"y": y}))


def test_lookup_tables_of_both_are_kept() -> None:
    whole = join(table_graph({"a": 1, "b": 2}), numbers(), {"x": "y"}, outputs=["y"])
    found = whole([], {"x": tf.constant(["b", "a", "?"])})
    assert found["first/y"].numpy().tolist() == [2, 1, -1]
    assert found["second/y"].numpy().tolist() == [b"two", b"one", b"none"]


def numbers() -> Graph:
    return find(tf.constant([1, 2], tf.int64), tf.constant(["one", "two"]), otherwise="none")


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"z": "features"}, [], "inputs of head: expected some of scale, x, found z"),
        ({"x": "z"}, [], "outputs of encoder: expected some of features, found z"),
        ({"x": "features"}, ["z"], "outputs of encoder: expected some of features, found z"),
        ({}, [], "expected inputs .x, scale. by outputs .features., found none"),
        (
            {"scale": "features"},
            [],
            r"'features' of encoder for 'scale': expected float32 \[\?, 1\], found .* \[\?, 3\]",
        ),
    ],
)
def test_what_cannot_be_connected_is_refused_with_both_sides(
    inputs: dict[str, str], outputs: list[str], message: str
) -> None:
    encoder, head = capture(dense("first")).graph, capture(head_model()).graph
    with pytest.raises(GraphError, match=message):
        join(encoder, head, inputs, prefixes=("encoder", "head"), outputs=outputs)


def test_other_dtypes_signatures_and_prefixes_are_refused() -> None:
    encoder, table = capture(dense("first")).graph, table_graph({"a": 1})
    with pytest.raises(GraphError, match=r"expected string \[\?\], found float32"):
        join(encoder, table, {"x": "features"})
    with pytest.raises(UnknownSignatureError, match="'other' does not exist"):
        join(encoder, encoder, {"x": "features"}, signatures=("other", "serving_default"))
    for prefixes in (("a", "a"), ("", "b"), ("a/b", "a")):
        with pytest.raises(GraphError, match="expected two different words"):
            join(encoder, encoder, {"x": "features"}, prefixes=prefixes)
