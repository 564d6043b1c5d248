"""A captured graph does not print any more, and still checks its inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from tests.support.control_flow import control_flow

v1 = tf.compat.v1
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def printed(x: tf.Tensor) -> tf.Tensor:
    return v1.Print(x * 2, [x, tf.shape(x)], "told by Print: ")


def printed_beside(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.print("told by tf.print:", x, tf.shape(x))]):
        return x * 2


def printed_in_a_loop(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda at, _: at < 1, lambda at, one: (at + 1, printed(printed_beside(one) / 2)), [0, x])[1]


def printed_in_a_function(x: tf.Tensor) -> tf.Tensor:
    return tf.function(lambda one: printed(printed_beside(one) / 2))(x)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("build", [printed_in_a_loop, printed_in_a_function])
def test_what_is_printed_passes_through_in_silence(
    build: Callable[[tf.Tensor], tf.Tensor], version: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with tf.Graph().as_default(), control_flow(version):
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = build(x)
        with v1.Session() as session:
            np.testing.assert_array_equal(session.run(y, {x: X}), X * 2)
        assert "told by" in capfd.readouterr().err
        captured = capture(([x], {"y": y})).graph
    captured.save(tmp_path / "graph.pb")
    for graph in (captured, Graph.load(tmp_path / "graph.pb")):
        np.testing.assert_array_equal(graph([], {"x": tf.constant(X)})["y"], X * 2)
    assert "told by" not in capfd.readouterr().err


def test_graphs_of_others_are_served_in_silence_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = tf.identity(printed(printed_beside(x) / 2), name="y")
        v1.train.export_meta_graph(str(tmp_path / "model.meta"))
        v1.saved_model.simple_save(session, str(tmp_path / "v1"), {"x": x}, {"y": y})
    module = tf.Module()
    module.double = tf.function(
        lambda x: {"y": printed_beside(x)}, input_signature=[tf.TensorSpec([None, 4], name="x")]
    )
    tf.saved_model.save(module, str(tmp_path / "v2"))
    for graph in (
        capture(tmp_path / "model.meta", inputs=["x:0"], outputs=["y:0"]).graph,
        capture(tmp_path / "v1").graph,
        capture(tmp_path / "v2").graph,
    ):
        (signature,) = graph.signatures.values()
        (name,), (end,) = signature.inputs, signature.outputs
        np.testing.assert_array_equal(graph([], {name: tf.constant(X)})[end], X * 2)
    assert "told by" not in capfd.readouterr().err


def test_a_function_of_today_prints_nothing_once_it_is_captured(capfd: pytest.CaptureFixture[str]) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], name="x")])
    def double(x: tf.Tensor) -> tf.Tensor:
        tf.print("told by", x)
        tf.debugging.assert_non_negative(x, "below zero")
        return tf.debugging.check_numerics(x * 2, "not a number")

    (name,) = (graph := capture(double).graph).signatures["serving_default"].outputs
    assert graph([], {"x": tf.constant([1.0])})[name].numpy().tolist() == [2.0]
    assert "told by" not in capfd.readouterr().err
    with pytest.raises(tf.errors.InvalidArgumentError, match="below zero"):
        graph([], {"x": tf.constant([-1.0])})
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a number"):
        graph([], {"x": tf.constant([np.inf])})
