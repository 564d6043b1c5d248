"""A draft becomes a graph of the nodes that its signatures need; a missing tensor is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.draft import Draft, finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from tests.support.v1_drafts import control_flow, draft_of, parameters_of, signature

v1 = tf.compat.v1
Array = npt.NDArray[Any]


def nodes(graph: Graph) -> set[str]:
    return {node.name for node in v1.GraphDef.FromString(graph.message().graph_def).node}


def kinds(graph: Graph) -> list[str]:
    return [node.op for node in v1.GraphDef.FromString(graph.message().graph_def).node]


class Trained:
    """A graph as a training script leaves it: input pipeline, dropout, loss, optimizer, summaries, a saver."""

    def __init__(self) -> None:
        with tf.Graph().as_default() as self.graph:
            data = tf.data.Dataset.from_tensor_slices(np.ones((8, 4), np.float32)).batch(2).repeat()
            self.batch = v1.data.make_one_shot_iterator(data).get_next()
            weights = v1.get_variable("weights", (4, 3), use_resource=True)
            with v1.variable_scope("output"):
                self.bias = v1.get_variable("bias", (3,), use_resource=False)
            self.hidden = tf.matmul(self.batch, weights, name="hidden")
            self.scores = tf.nn.bias_add(self.hidden, self.bias, name="scores")
            loss = tf.reduce_mean(v1.nn.dropout(self.scores, rate=0.5))
            v1.summary.scalar("loss", loss)
            v1.train.AdamOptimizer().minimize(loss)
            v1.train.Saver()
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                self.values = dict(zip(["output/bias", "weights"], session.run([self.bias, weights]), strict=True))
                x = np.arange(8, dtype=np.float32).reshape(2, 4)
                self.hidden_value, self.expected = session.run([self.hidden, self.scores], {self.batch: x})
        self.x = tf.constant(x)

    def draft(self, **signatures: tuple[Mapping[str, tf.Tensor], Mapping[str, tf.Tensor]]) -> Draft:
        graph_def = self.graph.as_graph_def()
        made = {name: signature(*one) for name, one in signatures.items()}
        return Draft(graph_def, parameters_of(graph_def), made)

    def parameters(self, graph: Graph) -> list[tf.Tensor]:
        return [tf.constant(self.values[spec.name]) for spec in graph.parameters]


@pytest.fixture(scope="module")
def trained() -> Trained:
    return Trained()


def test_only_what_leads_from_inputs_to_outputs_is_kept(trained: Trained) -> None:
    graph = finish(trained.draft(serving_default=({"x": trained.batch}, {"scores": trained.scores})))
    assert [spec.name for spec in graph.parameters] == ["output/bias", "weights"]
    found = graph(trained.parameters(graph), {"x": trained.x})["scores"]
    np.testing.assert_array_equal(found, trained.expected)
    assert not {"OneShotIterator", "IteratorGetNext", "ResourceApplyAdam", "SaveV2", "VarHandleOp"} & set(kinds(graph))
    assert len(nodes(graph)) < 10


def test_one_signature_may_compute_what_another_one_takes(trained: Trained) -> None:
    graph = finish(
        trained.draft(
            whole=({"x": trained.batch}, {"scores": trained.scores}),
            head=({"hidden": trained.hidden}, {"scores": trained.scores}),
            both=({"hidden": trained.hidden, "x": trained.batch}, {"scores": trained.scores, "x": trained.batch}),
        )
    )
    graph = Graph.from_bytes(graph.to_bytes())
    values = trained.parameters(graph)
    hidden = tf.constant(trained.hidden_value)
    for name, inputs in (
        ("whole", {"x": trained.x}),
        ("head", {"hidden": hidden}),
        ("both", {"hidden": hidden, "x": trained.x}),
    ):
        found = graph(values, inputs, signature=name)
        np.testing.assert_array_equal(found["scores"], trained.expected)
    np.testing.assert_array_equal(found["x"], trained.x)


@control_flow("v1")
def test_loops_of_two_signatures_with_nodes_of_their_own_do_not_run_as_one() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (), name="x")
        double = x * 2
        y = tf.while_loop(lambda value: value < 100, lambda value: value * value, [double])[0]
        draft = draft_of(graph, {"x": x}, {"y": y})
    draft = replace(draft, signatures={**draft.signatures, "inner": signature({"double": double}, {"y": y})})
    found = finish(draft)
    loops = v1.GraphDef.FromString(found.message().graph_def).node
    assert len({node.attr["frame_name"].s for node in loops if node.op == "Enter"}) == 2
    assert found([], {"x": tf.constant(2.0)})["y"] == 256
    assert found([], {"double": tf.constant(3.0)}, signature="inner")["y"] == 6561


def test_a_placeholder_that_nobody_feeds_is_named_and_one_with_a_default_keeps_it() -> None:
    with tf.Graph().as_default() as graph:
        x, rate = v1.placeholder(tf.float32, (2,), name="x"), v1.placeholder(tf.float32, (), name="rate")
        keep = v1.placeholder_with_default(3.0, (), name="keep")
        draft = draft_of(graph, {"x": x}, {"y": x * keep})
        missing = draft_of(graph, {"x": x}, {"y": x * rate})
        given = draft_of(graph, {"x": x, "keep": keep}, {"y": x * keep})
    with pytest.raises(GraphError, match="placeholder 'rate' is needed for the outputs but not among the inputs"):
        finish(missing)
    two = tf.constant([1.0, 2.0])
    np.testing.assert_array_equal(finish(draft)([], {"x": two})["y"], [3, 6])
    np.testing.assert_array_equal(finish(given)([], {"x": two, "keep": tf.constant(2.0)})["y"], [2, 4])


def test_a_tensor_that_is_not_in_the_graph_is_named(trained: Trained) -> None:
    draft = trained.draft(f=({"x": trained.batch}, {"scores": trained.scores}))
    draft.signatures["f"].outputs[0].tensor = "nowhere:0"
    with pytest.raises(GraphError, match="no tensor 'nowhere:0', which 'f' needs"):
        finish(draft)


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_a_variable_are_cut_from_the_whole(axis: int, use_resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.int32, (None,), name="x")
        parts = v1.get_variable(
            "table", (10, 6), partitioner=v1.fixed_size_partitioner(3, axis), use_resource=use_resource
        )
        whole = tf.gather(tf.convert_to_tensor(parts), x)
        some = tf.reduce_sum(list(parts)[1])
        looked_up = v1.nn.embedding_lookup(parts, x, partition_strategy="div") if axis == 0 else whole
        graph_def = graph.as_graph_def()
        outputs = {"whole": whole, "some": some, "looked_up": looked_up}
        draft = Draft(
            graph_def, parameters_of(graph_def, list(parts)), {DEFAULT_SIGNATURE: signature({"x": x}, outputs)}
        )
        rows = np.array([9, 0, 4, 4], np.int32)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            value = session.run(tf.convert_to_tensor(parts))
            expected = session.run(outputs, {x: rows})
    found = finish(draft)
    assert [(spec.name, spec.shape) for spec in found.parameters] == [("table", (10, 6))]
    answers = found([tf.constant(value)], {"x": tf.constant(rows)})
    for name, wanted in expected.items():
        np.testing.assert_array_equal(answers[name], wanted)
    assert axis == 0 or "ConcatV2" not in kinds(found)  # the whole is there already; lookups join other things


def test_a_part_that_lies_outside_of_the_whole_is_refused() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (), name="x")
        parts = v1.get_variable("table", (4, 2), partitioner=v1.fixed_size_partitioner(2), use_resource=True)
        made = signature({"x": x}, {"y": x + list(parts)[1]})
        graph_def = graph.as_graph_def()
        draft = Draft(graph_def, parameters_of(graph_def, list(parts)), {DEFAULT_SIGNATURE: made})
    wrong = [
        replace(one, part=replace(one.part, offsets=(3, 0))) if one.part is not None else one
        for one in draft.parameters
    ]
    with pytest.raises(GraphError, match=r"expected a part of 'table', .* \[4, 2\], found shape \[2, 2\] at \[3, 0\]"):
        finish(replace(draft, parameters=wrong))


@pytest.mark.parametrize("reads", [True, False], ids=["lifted", "made pure"])
def test_a_function_that_calls_itself_is_refused(reads: bool) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (), name="x")
        weight = v1.get_variable("weight", (), use_resource=True)
        inner = tf.function(lambda one: one * weight if reads else one * 2.0)
        outer = tf.function(lambda one: inner(one) + 1.0)
        draft = draft_of(graph, {"x": x}, {"y": outer(x)})
    for function in draft.graph_def.library.function:
        for node in function.node_def:
            if "f" in node.attr:
                node.attr["f"].func.name = function.signature.name
    with pytest.raises(GraphError, match="functions of the graph call themselves"):
        finish(draft)
