"""The digest tells structures apart, ignores names, and is made in time that grows with the graph's size."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from paramsync.graphs.digest import digest


def nested(depth: int, *, calls: str = "f", innermost: str = "Neg") -> Any:
    """A graph that calls a function that calls the one before twice, and so on."""
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


def test_a_function_that_calls_itself_has_a_digest() -> None:
    graph = nested(1)
    graph.library.function[0].node_def[0].op = "PartitionedCall"
    graph.library.function[0].node_def[0].attr["f"].func.name = "f0"
    assert of(graph) != of(nested(1))


def test_a_chain_deeper_than_pythons_stack_has_a_digest() -> None:
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="x", op="Placeholder")
    for number in range(5000):
        graph.node.add(name=f"n{number}", op="Neg", input=[f"n{number - 1}" if number else "x"])
    assert digest(graph, {"x": "input x"}, [("y", "n4999:0")]) != digest(graph, {"x": "input x"}, [("y", "n4998:0")])
