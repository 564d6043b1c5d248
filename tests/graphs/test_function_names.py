"""Functions are named by what they hold, so that any number of graphs fit into one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.digest import name_by_content
from paramsync.graphs.draft import finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.meta_graphs import draft_of_meta

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def control_flow_v2() -> Iterator[None]:
    before = v1.control_flow_v2_enabled()
    v1.enable_control_flow_v2()
    yield
    if not before:
        v1.disable_control_flow_v2()


def doubling(times: int) -> Any:
    """A meta graph with a loop, whose functions were given the same names in every process."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (), name="x")
        _, y = tf.while_loop(lambda i, _: i < times, lambda i, y: (i + 1, y * 2.0), [tf.constant(0), x])
        tf.identity(y, name="y")
        meta = v1.train.export_meta_graph(graph=graph)
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
    graph_def = v1.GraphDef()
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
    graph_def = v1.GraphDef()
    graph_def.library.function.extend([function("a", calls[0]), function("b", calls[1])])
    with pytest.raises(GraphError, match="calls itself"):
        name_by_content(graph_def)
