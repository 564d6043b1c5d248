"""A Graph checks what it is given, and refuses a file that is not what it says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, InputError, UnknownSignatureError
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.specs import DEFAULT_SIGNATURE, TensorSpec
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
        ({}, "inputs: expected 'x', found none"),
        ({"z": np.ones((1, 2), np.float32)}, "inputs: expected 'x', found 'z'"),
        (
            {"x": np.ones((1, 2))},
            r"input 'x': expected float32 \[\?, 2\], found float64 \[1, 2\]: pass astype\('float32'\)$",
        ),
        ({"x": np.ones((1, 3), np.float32)}, r"expected float32 \[\?, 2\], found float32 \[1, 3\]"),
        ({"x": np.ones(2, np.float32)}, r"found float32 \[2\]"),
        ({"x": np.array([[b"a", b"b"]], object)}, r"found string \[1, 2\]$"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_both_sides(
    graph: Graph, inputs: dict[str, npt.NDArray[Any]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        graph.check_inputs(DEFAULT_SIGNATURE, inputs)


def test_unknown_signatures_and_outputs_are_refused_with_those_there_are(graph: Graph) -> None:
    with pytest.raises(UnknownSignatureError, match="'other' does not exist; there are: 'serving_default'"):
        graph.check_inputs("other", {})
    with pytest.raises(InputError, match="expected some of 'rows', 'y', found 'z'"):
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


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(GraphError, match="expected a signature or more, found none"):
        Graph.from_bytes(b"")


def test_a_file_may_be_named_as_text(graph: Graph, tmp_path: Path) -> None:
    graph.save(str(tmp_path / "graph.pb"))
    assert Graph.load(str(tmp_path / "graph.pb")).digest == graph.digest


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


@pytest.mark.parametrize("inputs", [{}, {"z": tf.ones((1, 2))}, {"x": tf.ones((1, 2)), "z": tf.ones((1, 2))}])
def test_a_call_with_other_inputs_says_what_was_expected(graph: Graph, inputs: dict[str, tf.Tensor]) -> None:
    with pytest.raises(InputError, match="inputs: expected 'x', found"):
        graph([tf.ones((2, 1))], inputs)


def test_a_call_of_what_is_not_there_says_what_is(graph: Graph) -> None:
    with pytest.raises(UnknownSignatureError, match="'other' does not exist; there are: 'serving_default'"):
        graph([tf.ones((2, 1))], {"x": tf.ones((1, 2))}, signature="other")
    with pytest.raises(InputError, match="expected some of 'rows', 'y', found 'z'"):
        graph([tf.ones((2, 1))], {"x": tf.ones((1, 2))}, outputs=["z"])


def test_a_graph_is_kept_as_one_file_that_is_there_when_it_is_whole(graph: Graph, tmp_path: Path) -> None:
    graph.save(tmp_path / "graph.pb")
    assert [one.name for one in tmp_path.iterdir()] == ["graph.pb"]
    assert Graph.load(tmp_path / "graph.pb").digest == graph.digest
    (tmp_path / "graph.pb").write_bytes(b"\xff")
    with pytest.raises(GraphError, match=r"graph\.pb: the graph file is not readable"):
        Graph.load(tmp_path / "graph.pb")


def test_devices_are_for_the_caller_to_say(graph: Graph) -> None:
    message = graph.message()
    definition = tf.compat.v1.GraphDef.FromString(message.graph_def)
    for node in definition.node:
        node.device = "/job:elsewhere/task:7/device:GPU:3"
        node.attr["_class"].list.s.append(b"loc:@nowhere")
    message.graph_def = definition.SerializeToString()
    placeless = Graph.from_bytes(message.SerializeToString())
    assert placeless([tf.ones((2, 1))], {"x": tf.ones((1, 2))})["y"].numpy().tolist() == [[2.0]]
    assert b"elsewhere" not in placeless.to_bytes()


class Noisy(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((), tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.cond(x > 0.0, lambda: x + tf.random.normal([]), lambda: x)


def test_random_ops_are_noted_also_those_in_functions(graph: Graph) -> None:
    noisy = capture(Noisy()).graph
    assert (graph.stochastic, noisy.stochastic) == ((), ("RandomStandardNormal",))
    again = Graph.from_bytes(noisy.to_bytes())
    assert len({float(again([], {"x": tf.constant(1.0)})["outputs"]) for _ in range(3)}) == 3


@pytest.mark.parametrize("dtype", [tf.resource, tf.variant])
def test_an_input_that_nobody_can_give_is_refused(graph: Graph, dtype: tf.DType) -> None:
    message = graph.message()
    definition = tf.compat.v1.GraphDef()
    for node in ("a", "b"):
        definition.node.add(name=node, op="Placeholder").attr["dtype"].type = dtype.as_datatype_enum
    message.Clear()
    message.graph_def = definition.SerializeToString()
    end = graph_pb2.Endpoint(name="a", tensor="a:0", dtype=dtype.as_datatype_enum)
    message.signatures[DEFAULT_SIGNATURE].inputs.append(end)
    message.signatures[DEFAULT_SIGNATURE].outputs.append(end)
    with pytest.raises(GraphError, match=f"nobody can give 'a', a {dtype.name}"):
        Graph.from_bytes(message.SerializeToString())


def test_what_the_file_says_of_a_tensor_must_be_so(graph: Graph) -> None:
    for place in ("inputs", "outputs"):
        message = graph.message()
        message.digest = ""
        getattr(message.signatures[DEFAULT_SIGNATURE], place)[0].dtype = tf.float64.as_datatype_enum
        with pytest.raises(GraphError, match=r"cannot be built: .*float"):
            Graph.from_bytes(message.SerializeToString())
    message = graph.message()
    message.parameters[0].node = message.signatures[DEFAULT_SIGNATURE].inputs[0].tensor.removesuffix(":0")
    with pytest.raises(GraphError, match="cannot be built: expected a placeholder for each argument, found shared"):
        Graph.from_bytes(message.SerializeToString())


def test_a_shape_that_the_placeholder_does_not_take_is_refused(graph: Graph) -> None:
    for unknown in (True, False):  # kernels would rely on a shape that no caller is asked for
        message = graph.message()
        message.digest = ""
        shape = message.signatures[DEFAULT_SIGNATURE].inputs[0].shape
        shape.unknown_rank = unknown
        shape.dim[1].size = -1
        with pytest.raises(GraphError, match="does not take all shapes it may be given"):
            Graph.from_bytes(message.SerializeToString())


def test_a_file_that_was_damaged_is_refused_before_anything_is_made_of_it(graph: Graph) -> None:
    message = graph.message()
    definition = tf.compat.v1.GraphDef.FromString(message.graph_def)
    next(node for node in definition.node if node.op == "Const").attr["value"].tensor.int_val[:] = [7]
    message.graph_def = definition.SerializeToString()
    with pytest.raises(GraphError, match="is not the one it says it is"):
        Graph.from_bytes(message.SerializeToString())


class Waits(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((), tf.float32, name="x"), tf.TensorSpec((), tf.float32, name="z")])
    def __call__(self, x: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([x]):
            return tf.identity(z)


def test_what_waits_for_an_input_is_computed() -> None:
    waits = capture(Waits()).graph
    assert float(waits([], {"x": tf.constant(1.0), "z": tf.constant(2.0)})["outputs"]) == 2.0
