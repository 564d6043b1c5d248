"""What a copy gives back has the structure that was asked for; its saver and its devices are those one would expect."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.surgery import connect, duplicate
from tests.support.control_flow import control_flow
from tests.support.copies import DATA, dense, ready

v1 = tf.compat.v1


class Ends(NamedTuple):
    logits: Any
    hidden: Any


def network() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    hidden = dense(x, 5, "one")
    return x, hidden, tf.identity(dense(hidden, 3, "two"), name="logits")


def test_inputs_and_outputs_of_a_copy_have_the_structure_they_were_asked_for_in() -> None:
    with tf.Graph().as_default():
        x, hidden, logits = network()
        by_name = duplicate({"logits": logits, "hidden": [hidden, "logits"]}, {"x": x})
        ordered = duplicate(OrderedDict([("z", logits), ("a", hidden)]), (x,))
        named = duplicate(Ends(logits, (hidden,)), [x])
        one = duplicate(logits, x, scope="one")
    assert {key: tf.nest.map_structure(lambda end: end.name, end) for key, end in by_name.outputs.items()} == {
        "logits": "copy/logits:0",
        "hidden": ["copy/one/Relu:0", "copy/logits:0"],
    }
    assert by_name.inputs["x"] is by_name[x]
    assert (type(ordered.outputs), list(ordered.outputs)) == (OrderedDict, ["z", "a"])
    assert ordered.outputs["a"] is ordered[hidden]
    assert (type(named.outputs), named.outputs.hidden[0]) == (Ends, named[hidden])
    assert (type(named.inputs), type(ordered.inputs)) == (list, tuple)
    assert (one.inputs, one.outputs) == ((one[x],), (one[logits],))


def test_sparse_and_ragged_tensors_are_inputs_and_outputs_as_a_whole() -> None:
    with tf.Graph().as_default() as graph:
        words = v1.sparse_placeholder(tf.int64, [None, None], name="words")
        lengths = v1.placeholder(tf.int64, [None], name="lengths")
        doubled = words * tf.constant(2, tf.int64)
        ragged = tf.RaggedTensor.from_row_lengths(doubled.values, lengths)
        copy = duplicate({"sparse": doubled, "ragged": ragged}, {"words": words, "lengths": lengths})
    value = v1.SparseTensorValue([[0, 0], [0, 1], [1, 0]], [1, 2, 3], [2, 2])
    with v1.Session(graph=graph) as session:
        found = session.run(copy.outputs, {copy.inputs["words"]: value, copy.inputs["lengths"]: [2, 1]})
    assert found["sparse"].values.tolist() == [2, 4, 6]
    assert found["ragged"].to_list() == [[2, 4], [6]]


def test_a_saver_leaves_out_what_no_saver_writes(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        x, _, logits = network()
        count = v1.get_variable("count", [], collections=[v1.GraphKeys.LOCAL_VARIABLES])
        mine = v1.get_variable("mine", [], collections=["mine"])
        saver = v1.train.Saver()
        y = tf.identity(logits + count + mine, name="y")
        copy, apart = duplicate(y, x), duplicate(y, x, graph=tf.Graph())
        alone = duplicate(count, scope="alone")
        others = [v1.local_variables_initializer(), mine.initializer, copy[mine].initializer]
    with ready(graph) as session:
        session.run(others)
        original = saver.save(session, str(tmp_path / "original"))
        saved = copy.saver().save(session, str(tmp_path / "copy"))
    assert tf.train.list_variables(saved) == tf.train.list_variables(original)
    with ready(apart.graph) as session:
        apart.saver().restore(session, original)
        kernel = session.run(apart.variables["one/kernel"])
    np.testing.assert_array_equal(kernel, tf.train.load_variable(original, "one/kernel"))
    with pytest.raises(GraphError, match="saver: the copy 'alone' has no variables of its own that a Saver would save"):
        alone.saver()
    with pytest.raises(GraphError, match="saver: expected other arguments than var_list"):
        copy.saver(var_list=[])
    with tf.Graph().as_default() as target, v1.Session() as session:
        both = connect([(graph, original)], outputs=["y"])
        both.initialise(session)
        assert session.run(both.outputs["graph1/y"], {both.inputs["graph1/x"]: DATA}).shape == (7, 3)
    assert len(target.get_collection(v1.GraphKeys.LOCAL_VARIABLES)) == 1


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_devices_are_the_source_s_or_another_or_none(version: str) -> None:
    with tf.Graph().as_default() as graph, control_flow(version), tf.device("/GPU:7"):
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 4])

        def body(step: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.device("/GPU:7"):
                return step + 1, tf.cond(step > 1, lambda: state @ weights, lambda: state)

        y = tf.identity(tf.while_loop(lambda step, _: step < 3, body, [0, x])[1], name="y")
    for device, expected in ((None, "/device:GPU:7"), ("", ""), ("/CPU:0", "/device:CPU:0")):
        copy = duplicate(y, x, graph=tf.Graph(), device=device)
        with tf.Graph().as_default() as connected:
            connect([(graph, None)], outputs=["y"], device=device)
        for one in (copy.graph, connected):
            places = {node.device for node in nodes_of(one) if not node.name.startswith("graph1/save")}
            assert places - {""} == {expected} - {""}
    with ready(duplicate(y, x, graph=tf.Graph(), device="").graph) as session:  # TensorFlow has no such GPU
        assert session.run("copy/y:0", {"copy/x:0": DATA}).shape == (7, 4)


def nodes_of(graph: tf.Graph) -> list[Any]:
    graph_def = graph.as_graph_def()
    return [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]


def test_a_name_that_is_not_there_brings_those_like_it() -> None:
    with tf.Graph().as_default() as graph:
        x, _, _ = network()
        for wrong, similar in (("logit", "logits"), ("tower/logits:0", "logits"), ("one/Rleu", "one/Relu")):
            with pytest.raises(GraphError, match=f"outputs: .*similar: {similar}"):
                duplicate(wrong, x)
            with pytest.raises(GraphError, match=f"outputs: .*similar: {similar}"):
                connect([(graph, None)], outputs=[wrong], graph=tf.Graph())
        with pytest.raises(GraphError, match=r"its placeholders: x$"):
            duplicate("qqq", x)


def test_an_input_reads_a_tensor_of_the_graph_that_all_goes_to_or_of_a_live_source_or_an_array() -> None:
    with tf.Graph().as_default() as first:
        _, hidden, _ = network()
    with tf.Graph().as_default() as second:
        rate = v1.placeholder(tf.float32, [], name="rate")
        tf.multiply(dense(v1.placeholder(tf.float32, [None, 5], name="features"), 2, "head"), rate, name="score")
    with tf.Graph().as_default() as target:
        images = tf.constant(DATA) * 2
        both = connect(
            [(first, None), (second, None)],
            {"x": images, "features": hidden, "rate": np.float32(3)},
            outputs=["score"],
        )
        alone = connect([(first, None)], {"x": images}, outputs=["logits"], scopes=["alone"])
        variable = v1.get_variable("images", initializer=DATA)
        connect([(first, None)], {"x": variable}, outputs=["logits"], scopes=["read"])
    assert not both.inputs
    assert not alone.inputs
    with ready(target) as session:
        assert session.run(both.outputs["graph2/score"]).shape == (7, 2)
    with target.as_default(), pytest.raises(GraphError, match="'x:0' does not fit"):
        connect([(first, None)], {"x": tf.zeros([7, 3])}, outputs=["logits"])
    with target.as_default(), pytest.raises(GraphError, match=r"inputs: 'x' cannot read 'one/Relu:0': .* graph before"):
        connect([(first, None)], {"x": hidden}, outputs=["logits"])


def test_a_replacement_may_have_another_shape_that_the_operations_compute_with() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 8, 8, 1], name="x")
        kernel = v1.get_variable("kernel", [3, 3, 1, 2])
        maps = tf.nn.conv2d(x, kernel, 1, "SAME", name="maps")
        y = tf.reduce_mean(maps, [1, 2], name="y")
        larger = duplicate(y, replace={x: tf.ones([5, 16, 12, 1])}, variables="shared")
        flat = tf.reshape(maps, [-1, 8 * 8 * 2]) @ v1.get_variable("flat", [128, 3])
        of_variable = v1.get_variable("images", [2, 4, 4, 1])
        also = duplicate(y, replace={x: of_variable}, variables="shared")
        with pytest.raises(
            GraphError, match=r"'x:0' does not fit: expected float32 \(None, 8, 8, 1\), found .*16, 12, 1"
        ):
            duplicate(tf.ensure_shape(maps, [None, 8, 8, 2]), replace={x: tf.ones([5, 16, 12, 1])})
        with pytest.raises(GraphError, match="'x:0' does not fit"):
            duplicate(y, replace={x: tf.ones([5, 16])})
    assert larger.outputs[0].shape.as_list() == [5, 2]
    assert (also.outputs[0].shape.as_list(), flat.shape.as_list()) == ([2, 2], [None, 3])
    with ready(graph) as session:
        assert session.run(larger.outputs[0]).shape == (5, 2)


@pytest.mark.parametrize("variables", ["own", "shared"])
@pytest.mark.parametrize("resource", [False, True])
def test_layers_are_pruned_by_smaller_variables(resource: bool, variables: Any) -> None:
    with tf.Graph().as_default() as graph, v1.variable_scope("", use_resource=resource):
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        first, second = v1.get_variable("first", [4, 8]), v1.get_variable("second", [8, 3])
        y = tf.nn.relu(x @ first) @ second
        fewer, rest = v1.get_variable("fewer", [4, 5]), v1.get_variable("rest", [5, 3])
        pruned = duplicate(y, x, replace={first: fewer, second: rest}, variables=variables)
        assert not pruned.variables
        gradients = tf.gradients(pruned.outputs[0], [fewer, rest])
        with pytest.raises(GraphError, match=r"'first:0' does not fit: expected float32 \(4, 8\), found .*\(4, 5\)"):
            duplicate(y, x, replace={first: fewer}, variables=variables)
    rows = np.ones((2, 4), np.float32)
    with ready(graph) as session:
        found, weights, others, made = session.run(
            [pruned.outputs[0], fewer, rest, gradients], {pruned.inputs[0]: rows}
        )
    np.testing.assert_allclose(found, np.maximum(rows @ weights, 0) @ others, rtol=1e-5)
    assert [gradient.shape for gradient in made] == [(4, 5), (5, 3)]
