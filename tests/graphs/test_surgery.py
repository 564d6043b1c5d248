"""A copy of part of a live graph computes the same, and is initialised, saved and trained on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, ParameterError
from paramsync.graphs.surgery import connect, duplicate, synchronise
from tests.support.v1_drafts import DATA, control_flow, copy_values, dense, ready

v1 = tf.compat.v1
KEYS = v1.GraphKeys


@pytest.mark.parametrize("resource", [False, True])
def test_a_copy_with_own_variables_is_initialised_saved_and_trained_apart(tmp_path: Path, resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)  # with other seeds all units may begin dead
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = dense(dense(x, 5, "one", resource=resource), 3, "two", resource=resource)
        copy = duplicate(y, x, scope="copy")
        loss = tf.reduce_sum(tf.square(copy.outputs[0] - 1.0))
        train = v1.train.AdamOptimizer(0.1).minimize(loss, var_list=list(copy.variables.values()))
    assert sorted(copy.variables) == ["one/bias", "one/kernel", "two/bias", "two/kernel"]
    assert all(type(one) is type(copy.originals[name]) for name, one in copy.variables.items())
    assert copy.inputs[0].name == "copy/x:0"
    with ready(graph) as session:
        feed = {x: DATA, copy.inputs[0]: DATA}
        before, other = session.run([y, copy.outputs[0]], feed)
        assert not np.array_equal(before, other)
        copy_values(session, copy)
        np.testing.assert_array_equal(*session.run([y, copy.outputs[0]], feed))
        saved = copy.saver().save(session, str(tmp_path / "copy"))
        assert {name for name, _ in tf.train.list_variables(saved)} == set(copy.variables)
        losses = [session.run([loss, train], feed)[0] for _ in range(20)]
        assert losses[-1] < losses[0]
        np.testing.assert_array_equal(session.run(y, feed), before)
        copy.saver().restore(session, saved)
        np.testing.assert_array_equal(session.run(copy.outputs[0], feed), before)


def test_a_copy_is_in_the_collections_of_its_source() -> None:
    def names(variables: list[tf.Variable]) -> list[str]:
        return [variable.op.name for variable in variables]

    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        hidden = dense(x, 5, "one", regularizer=lambda weights: 0.1 * tf.reduce_sum(weights * weights))
        moving = v1.get_variable("moving", [5], trainable=False, use_resource=True, collections=["mine", "variables"])
        v1.add_to_collection("ends", hidden)
        v1.add_to_collection(KEYS.UPDATE_OPS, moving.assign_sub(moving - tf.reduce_mean(hidden, 0)))
        v1.add_to_collection(KEYS.LOSSES, tf.reduce_sum(hidden - v1.placeholder(tf.float32, [], name="label")))
        y = tf.identity(hidden + moving, name="y")
        step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(y), v1.train.create_global_step())
        copy = duplicate(y, x, scope="copy")
        assert names(v1.trainable_variables("copy")) == ["copy/one/kernel", "copy/one/bias"]
        assert names(v1.global_variables("copy")) == ["copy/one/kernel", "copy/one/bias", "copy/moving"]
        assert graph.get_collection("mine")[1:] == [copy[moving]]
        assert [end.name for end in graph.get_collection("ends")] == ["one/Relu:0", "copy/one/Relu:0"]
        assert len(v1.losses.get_regularization_losses()) == 2
        assert [update.name.startswith("copy/") for update in graph.get_collection(KEYS.UPDATE_OPS)] == [False, True]
        assert len(graph.get_collection(KEYS.LOSSES)) == 1  # the loss needs a label, which the copy is not given
        assert len(graph.get_collection(KEYS.TRAIN_OP)) == 1
        trained = duplicate(step, x, scope="trained")
        assert v1.train.get_global_step().op.name == "global_step"
    kernel = trained.originals["one/kernel"]
    with ready(graph) as session:
        session.run(graph.get_collection(KEYS.UPDATE_OPS)[1], {copy.inputs[0]: DATA})
        assert session.run(copy[moving]).any()
        before = session.run([kernel, trained[kernel]])
        session.run(trained.outputs[0], {trained.inputs[0]: DATA})
        after = session.run([kernel, trained[kernel]])
        assert session.run([trained.originals["global_step"], trained.variables["global_step"]]) == [0, 1]
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])


def test_shared_variables_are_the_originals() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = dense(x, 3, "one")
        known = v1.global_variables()
        copy = duplicate(y, variables="shared", replace={x: tf.constant(DATA) * 2})
        assert v1.global_variables() == known
        assert not copy.variables
        assert copy[known[0]].op is known[0].op
    with ready(graph) as session:
        np.testing.assert_array_equal(*session.run([y, copy.outputs[0]], {x: DATA * 2}))


def test_a_shared_variable_may_be_called_like_the_folder_of_another() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("w", [4, 4], use_resource=False)
        averages = tf.train.ExponentialMovingAverage(0.9)
        update = averages.apply([weights])  # in a reference variable w/ExponentialMovingAverage
        y = tf.matmul(x, weights) - 2 * tf.matmul(x, averages.average(weights))
        copy = duplicate(y, x, variables="shared")
        initialisers = [weights.initializer, averages.average(weights).initializer]
    with v1.Session(graph=graph) as session:
        for initialiser in initialisers:  # one after the other: the second reads the first variable
            session.run(initialiser)
        session.run(update)
        np.testing.assert_array_equal(*session.run([y, copy.outputs[0]], {x: DATA, copy.inputs[0]: DATA}))


@pytest.mark.parametrize("variables", ["own", "shared"])
@pytest.mark.parametrize("resource", [False, True])
def test_a_variable_is_replaced_by_a_variable_or_a_value_wherever_it_is_read(resource: bool, variables: Any) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        with v1.variable_scope("", use_resource=resource):
            weights = v1.get_variable("weights", [4, 4])
            same_kind = v1.get_variable("same", [4, 4])
        other_kind = v1.get_variable("other", [4, 4], use_resource=not resource)
        y = tf.matmul(x, weights) + tf.nn.embedding_lookup(weights, [0])
        values: list[Any] = [same_kind, other_kind, tf.fill([4, 4], 2.0), np.full((4, 4), 2.0, np.float32)]
        copies = [duplicate(y, x, variables=variables, replace={weights: value}) for value in values]
        fed = duplicate(y, [x, weights], variables=variables)
        assert not any(copy.variables for copy in [*copies, fed])
    with ready(graph) as session:
        filled = [session.run(one) if isinstance(one, tf.Variable) else np.full((4, 4), 2.0) for one in values]
        feeds = [{copy.inputs[0]: DATA} for copy in copies] + [{fed.inputs[0]: DATA, fed.inputs[1]: filled[2]}]
        for copy, feed, value in zip([*copies, fed], feeds, [*filled, filled[2]], strict=True):
            found = session.run(copy.outputs[0], feed)
            np.testing.assert_allclose(found, DATA @ value + value[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variables", ["own", "shared"])
@pytest.mark.parametrize("resource", [False, True])
def test_layers_are_pruned_by_smaller_variables(resource: bool, variables: Any) -> None:
    with tf.Graph().as_default() as graph, v1.variable_scope("", use_resource=resource):
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        first, second = v1.get_variable("first", [4, 8]), v1.get_variable("second", [8, 3])
        y = tf.nn.relu(x @ first) @ second
        fewer, rest = v1.get_variable("fewer", [4, 5]), v1.get_variable("rest", [5, 3])
        pruned = duplicate(y, x, replace={first: fewer, second: rest}, variables=variables)
        gradients = tf.gradients(pruned.outputs[0], [fewer, rest])
        with pytest.raises(GraphError, match=r"'first:0' does not fit: expected float32 \(4, 8\), found .*\(4, 5\)"):
            duplicate(y, x, replace={first: fewer}, variables=variables)
    rows = np.ones((2, 4), np.float32)
    with ready(graph) as session:
        found, weights, others, _ = session.run([pruned.outputs[0], fewer, rest, gradients], {pruned.inputs[0]: rows})
    np.testing.assert_allclose(found, np.maximum(rows @ weights, 0) @ others, rtol=1e-5)


def test_a_tensor_in_the_middle_can_be_an_input_or_be_replaced() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        first, second = tf.split(x, 2, axis=1, name="split")
        y = first * second + first
        fed = duplicate(y, second, replace={x: tf.constant(DATA)})
        replaced = duplicate(y, [x], replace={"split:1": second * 2})
    assert fed.inputs[0].shape.as_list() == [None, 2]
    with v1.Session(graph=graph) as session:
        left, right = DATA[:, :2], DATA[:, 2:]
        np.testing.assert_array_equal(session.run(fed.outputs[0], {fed.inputs[0]: right}), left * right + left)
        found = session.run(replaced.outputs[0], {replaced.inputs[0]: DATA, x: DATA})
        np.testing.assert_array_equal(found, left * (right * 2) + left)


def test_names_of_placeholders_and_constants_do_not_meet_those_of_copied_nodes() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [2], name="x")
        middle = tf.multiply(x, 2.0, name="middle")
        y = tf.add(tf.identity(middle, name="middle_input") * tf.identity(x, name="given"), 1.0)
        copy = duplicate([y, middle], [middle], replace={x: np.array([1, 2], np.float32)})
    with v1.Session(graph=graph) as session:
        assert session.run(copy.outputs[0], {copy.inputs[0]: [3.0, 4.0]}).tolist() == [4.0, 9.0]


def test_the_parts_of_a_partitioned_variable_are_saved_as_one(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int32, [None], name="ids")
        table = v1.get_variable("table", [9, 4], partitioner=v1.fixed_size_partitioner(3))
        y = v1.nn.embedding_lookup(table, ids, partition_strategy="div")
        copy = duplicate(y, ids)
        saver = v1.train.Saver(v1.global_variables("table"))
    with ready(graph) as session:
        copy.saver().restore(session, saver.save(session, str(tmp_path / "model")))
        feed = {ids: [8, 0, 4], copy.inputs[0]: [8, 0, 4]}
        np.testing.assert_array_equal(*session.run([y, copy.outputs[0]], feed))
        assert dict(tf.train.list_variables(copy.saver().save(session, str(tmp_path / "copy")))) == {"table": [9, 4]}


def test_a_saver_leaves_out_local_variables_as_any_saver_does(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        count = v1.get_variable("count", [], collections=[KEYS.LOCAL_VARIABLES])
        y = tf.identity(dense(x, 3, "one") + count, name="y")
        saver = v1.train.Saver()
        copy, alone = duplicate(y, x), duplicate(count, scope="alone")
        local = v1.local_variables_initializer()
    with ready(graph) as session:
        session.run(local)
        original = saver.save(session, str(tmp_path / "original"))
        saved = copy.saver().save(session, str(tmp_path / "copy"))
    assert tf.train.list_variables(saved) == tf.train.list_variables(original)
    with pytest.raises(GraphError, match="saver: the copy 'alone' has no variables of its own that a Saver would save"):
        alone.saver()
    with tf.Graph().as_default() as target, v1.Session() as session:
        both = connect([(graph, original)], outputs=["y"])
        both.initialise(session)
        assert session.run(both.outputs["graph1/y"], {both.inputs["graph1/x"]: DATA}).shape == (7, 3)
    assert len(target.get_collection(KEYS.LOCAL_VARIABLES)) == 1


def test_a_copy_has_temporary_variables_of_its_own() -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2], name="x")
        filled = v1.assign(tf.raw_ops.TemporaryVariable(shape=[2], dtype=tf.float32, var_name="held"), x)
        y = tf.raw_ops.DestroyTemporaryVariable(ref=filled, var_name="held")
        copy = duplicate(y, x)
        both = [y, copy.outputs[0]]
        assert [one.op.get_attr("var_name") for one in both] == [b"held", b"copy/held"]
        with v1.Session() as session:
            assert session.run(both, {x: [1, 2], copy.inputs[0]: [3, 4]})[1].tolist() == [3, 4]


def test_graphs_without_collections_have_their_variables_copied_too() -> None:
    with tf.Graph().as_default() as first:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        dense(dense(x, 3, "one"), 3, "two", resource=False)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(first.as_graph_def(), name="")
        copy = duplicate("two/Relu:0", "x")
        with v1.Session() as session:
            session.run(v1.variables_initializer(list(copy.variables.values())))
            assert session.run(copy.outputs[0], {copy.inputs[0]: DATA}).shape == (7, 3)


def test_a_copy_keeps_declared_shapes_and_constraints_and_leaves_scopes_around_the_call() -> None:
    def constraint(weights: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value(weights, 0.0, 1.0)

    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, None, name="x")
        weights = v1.get_variable("weights", [4], constraint=constraint)
        y = x * weights
        y.set_shape([None, 4])
        with v1.name_scope("outer"), tf.control_dependencies([y]), tf.device("/CPU:1"):
            copy = duplicate(y, x, scope="copy")
        assert copy.outputs[0].shape.as_list() == [None, 4]
        assert copy[weights].constraint is constraint
        operation = copy.outputs[0].op
        assert (operation.name, operation.control_inputs, operation.device) == ("copy/mul", [], "")
        assert duplicate(y, x, scope="copy").scope == "copy_1"


def test_a_scope_is_free_only_where_no_node_of_it_was_imported() -> None:
    with tf.Graph().as_default() as first:
        x = v1.placeholder(tf.float32, [None], name="x")
        duplicate(tf.identity(x * 2.0, name="y"), x)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(first.as_graph_def(), name="")
        assert duplicate("y", "x").scope == "copy_1"


def test_inputs_and_outputs_of_a_copy_have_the_structure_they_were_asked_for_in() -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        hidden = dense(x, 5, "one")
        logits = tf.identity(dense(hidden, 3, "two"), name="logits")
        by_name = duplicate({"logits": logits, "hidden": [hidden, "logits"]}, {"x": x})
        one = duplicate(logits, x, scope="one")
    assert {key: tf.nest.map_structure(lambda end: end.name, end) for key, end in by_name.outputs.items()} == {
        "logits": "copy/logits:0",
        "hidden": ["copy/one/Relu:0", "copy/logits:0"],
    }
    assert by_name.inputs["x"] is by_name[x]
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


def test_a_copy_goes_to_another_graph_with_its_tables_and_functions() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.int64, [None, 4], name="x")
        rows = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([7, 8], [1.0, 2.0], tf.int64), -1.0)
        y = tf.function(lambda one: one * 2)(dense(rows.lookup(x), 3, "one"))
    other = tf.Graph()
    copy = duplicate(y, x, scope="copy", graph=other)
    assert len(graph.get_collection(KEYS.GLOBAL_VARIABLES)) == len(other.get_collection(KEYS.GLOBAL_VARIABLES)) == 2
    with ready(other) as session:
        assert session.run(copy.outputs[0], {copy.inputs[0]: [[7, 8, 7, 9]]}).shape == (1, 3)
    assert copy["x"] is copy.inputs[0]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_devices_are_the_sources_or_another_or_none(version: str) -> None:
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
    here = duplicate(y, x, scope="here", device="/CPU:0")
    assert here.variables["weights"].device == "/device:CPU:0"


def nodes_of(graph: tf.Graph) -> list[Any]:
    graph_def = graph.as_graph_def()
    return [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]


@pytest.mark.parametrize("resource", [False, True])
def test_a_copy_in_the_same_graph_is_synchronised_by_an_op(resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 3], use_resource=resource)
        y = tf.matmul(x, weights)
        step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(y))
        copy = duplicate(y, x, device="/CPU:0")
        both = synchronise(copy.originals, copy)
        back = synchronise(copy, copy.originals)
    with ready(graph) as session:
        session.run(step, {x: DATA})
        both.run(session)
        np.testing.assert_array_equal(*session.run([weights, copy[weights]]))
        session.run(step, {x: DATA})
        before = session.run(copy[weights])
        session.run(back.op)
        np.testing.assert_array_equal(session.run(weights), before)


def test_a_copy_in_another_graph_is_synchronised_from_session_to_session() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 3])
        y = tf.matmul(x, weights)
    serving = tf.Graph()
    copy = duplicate(y, x, graph=serving)
    both = synchronise(graph, copy)
    with ready(graph) as trains, v1.Session(graph=serving) as serves:
        both.run(trains, serves)
        np.testing.assert_array_equal(trains.run(weights), serves.run(copy[weights]))
        with pytest.raises(GraphError, match="expected a session of each"):
            both.run(trains)
        with pytest.raises(GraphError, match=r"^session: expected a session of the graph"):
            both.run(serves, trains)


def test_variables_that_do_not_pair_are_not_synchronised() -> None:
    with tf.Graph().as_default():
        small, large = v1.get_variable("small", [2]), v1.get_variable("large", [3])
        assert synchronise([small, large], (small, large)).op.graph is small.graph
        with pytest.raises(ParameterError, match=r"the source: expected a float32 \[3\], found float32 \[2\]"):
            synchronise({"a": small}, {"a": large})
        with pytest.raises(ParameterError, match=r"expected variable 2 \(1 missing\), found variable 1"):
            synchronise([small], [small, large])
        with pytest.raises(GraphError, match="target: expected variables, found none"):
            synchronise([], [])
    with tf.Graph().as_default():
        other = v1.get_variable("other", [2])
        with pytest.raises(GraphError, match="of several graphs"):
            synchronise([small, other], [small, small])
