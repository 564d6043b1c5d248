"""Digests tell structures apart and ignore names; functions are named by their content, and found by their names."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.capturing import capture
from paramsync.graphs.digest import digest, name_by_content
from paramsync.graphs.draft import finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.meta_graphs import draft_of_meta
from tests.support.v1_drafts import control_flow


def nested(depth: int, *, calls: str = "f", innermost: str = "Neg") -> Any:
    """A chain of functions, each of which calls the function before it twice."""
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="x", op="Placeholder")
    graph.node.add(name="y", op="PartitionedCall", input=["x"]).attr["f"].func.name = f"{calls}{depth}"
    for level in range(depth + 1):
        function = graph.library.function.add()
        function.signature.name = f"{calls}{level}"
        function.signature.input_arg.add(name="a")
        function.signature.output_arg.add(name="b")
        function.ret["b"] = "two:output:0"
        for name, before in (("one", "a"), ("two", "one:output:0")):
            node = function.node_def.add(name=name, op="PartitionedCall" if level else innermost, input=[before])
            if level:
                node.attr["f"].func.name = f"{calls}{level - 1}"
    return graph


def of(graph: Any) -> str:
    return digest(graph, {"x": "input x"}, [("y", "y:0")])


def test_functions_called_from_many_places_are_digested_once() -> None:
    assert of(nested(60)) != of(nested(59))  # 2 ** 60 calls, were they followed one by one


def test_names_of_functions_do_not_count_and_what_they_compute_does() -> None:
    assert of(nested(3, calls="g")) == of(nested(3))
    assert of(nested(3, innermost="Exp")) != of(nested(3))


def test_what_a_node_says_of_the_function_it_names_counts() -> None:
    graph = nested(1)
    next(node for node in graph.node if node.name == "y").attr["f"].func.attr["T"].type = tf.float32.as_datatype_enum
    assert of(graph) != of(nested(1))


def test_a_chain_deeper_than_pythons_stack_has_a_digest() -> None:
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="x", op="Placeholder")
    for number in range(5000):
        graph.node.add(name=f"n{number}", op="Neg", input=[f"n{number - 1}" if number else "x"])
    assert digest(graph, {"x": "input x"}, [("y", "n4999:0")]) != digest(graph, {"x": "input x"}, [("y", "n4998:0")])


def model(activation: str = "relu", *, rows: int | None = None) -> keras.Model:
    inputs = keras.Input((4,), batch_size=rows, name="x")
    hidden = keras.layers.LSTM(3)(keras.layers.Reshape((2, 2))(keras.layers.Dense(4, activation)(inputs)))
    return keras.Model(inputs, {"y": keras.layers.Dense(2, name="last")(hidden)})


def test_two_traces_of_one_model_in_two_processes_have_one_digest() -> None:
    program = "from tests.graphs.test_digest import *; model(); print(capture(model()).graph.digest)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [capture(model()).graph.digest]


class Named(tf.Module):
    def __init__(self, names: tuple[str, str], dtype: tf.DType = tf.float32) -> None:
        super().__init__()
        self.names = names
        spec = tf.TensorSpec((), dtype, name=names[0])
        self.compute = tf.function(self._compute, input_signature=[spec])
        self.weight = tf.Variable(1, dtype=dtype)

    def _compute(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {self.names[1]: x * self.weight}

    def __call__(self, x: tf.Tensor) -> Any:
        return self.compute(x)


@pytest.mark.parametrize("changed", [Named(("z", "y")), Named(("x", "z")), Named(("x", "y"), tf.float64)])
def test_names_and_dtypes_of_inputs_and_outputs_count(changed: Named) -> None:
    def of_module(module: Named) -> str:
        return capture(module.compute, root=module).graph.digest

    assert of_module(changed) != of_module(Named(("x", "y")))


def test_what_tells_old_loops_apart_does_not_count_and_what_they_compute_does() -> None:
    def loop(frame: str, op: str = "Neg") -> Any:
        graph = tf.compat.v1.GraphDef()
        graph.node.add(name="x", op="Placeholder")
        graph.node.add(name="in", op="Enter", input=["x"]).attr["frame_name"].s = frame.encode()
        graph.node.add(name="y", op=op, input=["in"])
        return graph

    assert of(loop("while_1")) == of(loop("while_2/context")) != of(loop("while_1", "Exp"))


def doubling(times: int) -> Any:
    """A meta graph with a loop, whose functions were given the same names in every process."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (), name="x")
        with control_flow("v2"):
            _, y = tf.while_loop(lambda i, _: i < times, lambda i, y: (i + 1, y * 2.0), [tf.constant(0), x])
        tf.identity(y, name="y")
        meta = tf.compat.v1.train.export_meta_graph(graph=graph)
    names = {one.signature.name: f"while_{at}" for at, one in enumerate(meta.graph_def.library.function)}
    for function in meta.graph_def.library.function:
        function.signature.name = names[function.signature.name]
    for node in meta.graph_def.node:
        for value in node.attr.values():
            if value.HasField("func"):
                value.func.name = names[value.func.name]
    return meta


def test_graphs_whose_functions_have_the_same_names_are_held_in_one_process() -> None:
    graphs = [finish(draft_of_meta(doubling(times), ["x"], ["y"])) for times in (1, 3)]
    graphs += [Graph.from_bytes(one.to_bytes()) for one in graphs]
    found = [graph([], {"x": tf.constant(1.0)})["y"].numpy() for graph in graphs]
    np.testing.assert_array_equal(found, [2, 8, 2, 8])


def function(name: str, calls: str) -> Any:
    one = tf.compat.v1.GraphDef().library.function.add()
    one.signature.name = name
    one.node_def.add(name="call", op="PartitionedCall").attr["f"].func.name = calls
    return one


def test_equal_functions_become_one() -> None:
    graph_def = tf.compat.v1.GraphDef()
    graph_def.library.function.extend([function("a_1", "Gone"), function("a_2", "Gone"), function("b", "a_2")])
    for name in ("a_1", "a_2", "b"):
        graph_def.node.add(name=name, op=name)
    name_by_content(graph_def)
    assert len(graph_def.library.function) == 2
    first, second, other = (node.op for node in graph_def.node)
    assert first == second != other
    assert [one.node_def[0].attr["f"].func.name for one in graph_def.library.function] == ["Gone", first]


@pytest.mark.parametrize("calls", [("a", "a"), ("b", "a")], ids=["itself", "one another"])
def test_functions_that_call_themselves_are_refused(calls: tuple[str, str]) -> None:
    graph_def = tf.compat.v1.GraphDef()
    graph_def.library.function.extend([function("a", calls[0]), function("b", calls[1])])
    with pytest.raises(GraphError, match="calls itself"):
        name_by_content(graph_def)
