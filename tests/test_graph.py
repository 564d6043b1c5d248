"""A Graph checks what it is given, and refuses a file that is not what it says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, InputError, UnknownSignatureError
from paramsync.graphs.capture import capture
from paramsync.graphs.graph import DEFAULT_SIGNATURE, Graph, TensorSpec
from paramsync.v1 import graph_pb2


class Line(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = tf.Variable([[2.0], [3.0]])

    @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.float32)])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x @ self.slope, "rows": tf.shape(x)[0]}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture(Line()).graph


def test_only_the_outputs_asked_for_are_returned(graph: Graph) -> None:
    slope = tf.constant([[1.0], [1.0]])
    assert graph([slope], {"x": tf.ones((4, 2))}, outputs=["rows"]).keys() == {"rows"}
    assert graph([slope], {"x": tf.ones((4, 2))}).keys() == {"y", "rows"}


def test_many_threads_with_different_parameters_never_mix(graph: Graph) -> None:
    def answers(value: float) -> set[float]:
        slope = tf.fill((2, 1), value)
        return {float(graph([slope], {"x": tf.ones((1, 2))})["y"][0, 0]) for _ in range(200)}

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(answers, [1.0, 2.0, 3.0, 4.0])) == [{2.0}, {4.0}, {6.0}, {8.0}]


def test_inputs_that_fit_are_accepted_as_arrays_and_tensors(graph: Graph) -> None:
    graph.check_inputs(DEFAULT_SIGNATURE, {"x": np.ones((3, 2), np.float32)}, ["y"])
    graph.check_inputs(DEFAULT_SIGNATURE, {"x": tf.ones((0, 2))})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "inputs: expected x, found none"),
        ({"z": np.ones((1, 2), np.float32)}, "inputs: expected x, found z"),
        ({"x": np.ones((1, 2))}, r"input 'x': expected float32 \[\?, 2\], found float64 \[1, 2\]"),
        ({"x": np.ones((1, 3), np.float32)}, r"expected float32 \[\?, 2\], found float32 \[1, 3\]"),
        ({"x": np.ones(2, np.float32)}, r"found float32 \[2\]"),
        ({"x": np.array([[b"a", b"b"]], object)}, r"found string \[1, 2\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_both_sides(
    graph: Graph, inputs: dict[str, npt.NDArray[Any]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        graph.check_inputs(DEFAULT_SIGNATURE, inputs)


def test_unknown_signatures_and_outputs_are_refused_with_those_there_are(graph: Graph) -> None:
    with pytest.raises(UnknownSignatureError, match="'other' does not exist; there are: serving_default"):
        graph.check_inputs("other", {})
    with pytest.raises(InputError, match="expected some of rows, y, found z"):
        graph.check_inputs(DEFAULT_SIGNATURE, {"x": np.ones((1, 2), np.float32)}, ["z"])


def test_a_spec_without_a_shape_accepts_any() -> None:
    assert TensorSpec("x", "int64", None).accepts("int64", (1, 2, 3))
    assert str(TensorSpec("x", "int64", None)) == "int64 of any shape"


def test_a_file_keeps_signatures_parameters_and_digest(graph: Graph) -> None:
    again = Graph.from_bytes(graph.to_bytes())
    assert (again.signatures, again.parameters, again.digest) == (graph.signatures, graph.parameters, graph.digest)


def test_a_file_of_garbage_is_refused() -> None:
    with pytest.raises(GraphError, match="not readable"):
        Graph.from_bytes(b"\xff" * 64)


def test_a_file_whose_graph_was_changed_is_refused(graph: Graph) -> None:
    message = graph_pb2.Graph.FromString(graph.to_bytes())
    definition = tf.compat.v1.GraphDef.FromString(message.graph_def)
    next(node for node in definition.node if node.op == "MatMul").attr["transpose_b"].b = True
    message.graph_def = definition.SerializeToString()
    with pytest.raises(GraphError):
        Graph.from_bytes(message.SerializeToString())


@pytest.mark.parametrize("field", ["tensor", "node", "graph_def"])
def test_a_file_that_names_what_is_not_there_is_refused(graph: Graph, field: str) -> None:
    message = graph_pb2.Graph.FromString(graph.to_bytes())
    if field == "tensor":
        message.signatures[DEFAULT_SIGNATURE].outputs[0].tensor = "nowhere:0"
    elif field == "node":
        message.parameters[0].node = "nowhere"
    else:
        message.graph_def = b""
    with pytest.raises(GraphError, match="cannot be built"):
        Graph.from_bytes(message.SerializeToString())
