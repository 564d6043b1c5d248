"""A copy of part of a live graph is one of its own: it computes the same, is initialised, saved and trained apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.surgery import Copy, duplicate

v1 = tf.compat.v1
KEYS = v1.GraphKeys
Array = npt.NDArray[Any]

DATA = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)


@pytest.fixture(params=["control flow v1", "control flow v2"])
def control_flow(request: pytest.FixtureRequest) -> Iterator[str]:
    before = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if request.param.endswith("v2") else v1.disable_control_flow_v2)()
    yield request.param
    (v1.enable_control_flow_v2 if before else v1.disable_control_flow_v2)()


def dense(tensor: tf.Tensor, units: int, name: str, *, resource: bool = True, **arguments: Any) -> tf.Tensor:
    with v1.variable_scope(name, use_resource=resource):
        kernel = v1.get_variable("kernel", [tensor.shape[-1], units], **arguments)
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
        return tf.nn.relu(tf.matmul(tensor, kernel) + bias)


def ready(graph: tf.Graph) -> Any:
    with graph.as_default():
        session = v1.Session(graph=graph)
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
    return session


def copy_values(session: Any, copy: Copy) -> None:
    with copy.graph.as_default():
        session.run([v1.assign(one, copy.originals[name].read_value()) for name, one in copy.variables.items()])


def names(variables: list[tf.Variable]) -> list[str]:
    return [one.op.name for one in variables]


@pytest.mark.parametrize("resource", [False, True])
def test_a_copy_with_own_variables_is_initialised_saved_and_trained_apart(tmp_path: Path, resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)  # else all units may begin dead
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


def test_a_copy_is_in_the_collections_its_source_is_in() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        hidden = dense(x, 5, "one", regularizer=lambda weights: 0.1 * tf.reduce_sum(weights * weights))
        moving = v1.get_variable("moving", [5], trainable=False, use_resource=True, collections=["mine", "variables"])
        v1.add_to_collection("ends", hidden)
        v1.add_to_collection(KEYS.UPDATE_OPS, moving.assign_sub(moving - tf.reduce_mean(hidden, 0)))
        v1.add_to_collection(KEYS.LOSSES, tf.reduce_sum(hidden - v1.placeholder(tf.float32, [], name="label")))
        v1.train.create_global_step()
        y = tf.identity(hidden + moving, name="y")
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(y))
        copy = duplicate(y, x, scope="copy")
        assert names(v1.trainable_variables("copy")) == ["copy/one/kernel", "copy/one/bias"]
        assert names(v1.global_variables("copy")) == ["copy/one/kernel", "copy/one/bias", "copy/moving"]
        assert graph.get_collection("mine")[1:] == [copy[moving]]
        assert [one.name for one in graph.get_collection("ends")] == ["one/Relu:0", "copy/one/Relu:0"]
        assert len(v1.losses.get_regularization_losses()) == 2
        assert [one.name.startswith("copy/") for one in graph.get_collection(KEYS.UPDATE_OPS)] == [False, True]
        assert len(graph.get_collection(KEYS.LOSSES)) == 1  # the loss needs a label, which the copy is not given
        assert len(graph.get_collection(KEYS.TRAIN_OP)) == 1
        assert v1.train.get_global_step() is not None
    with ready(graph) as session:
        session.run(graph.get_collection(KEYS.UPDATE_OPS)[1], {copy.inputs[0]: DATA})
        assert session.run(copy[moving]).any()


def test_a_copy_of_a_training_step_trains_its_own_variables() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        loss = tf.reduce_sum(dense(x, 3, "one"))
        step = v1.train.AdamOptimizer(0.1).minimize(loss, global_step=v1.train.create_global_step())
        copy = duplicate([step, loss], x, scope="copy")
        assert v1.train.get_global_step().op.name == "global_step"
    kernel = copy.originals["one/kernel"]
    with ready(graph) as session:
        before = session.run([kernel, copy[kernel]])
        session.run(copy.outputs[0], {copy.inputs[0]: DATA})
        after = session.run([kernel, copy[kernel]])
        assert session.run([copy.originals["global_step"], copy.variables["global_step"]]) == [0, 1]
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])


def test_shared_variables_are_the_originals() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = dense(x, 3, "one")
        known = v1.global_variables()
        copy = duplicate(y, x, variables="shared", replace={x: tf.constant(DATA) * 2})
        assert v1.global_variables() == known
        assert not copy.variables
        assert copy[known[0]].op is known[0].op
    with ready(graph) as session:
        np.testing.assert_array_equal(*session.run([y, copy.outputs[0]], {x: DATA * 2}))


@pytest.mark.parametrize("variables", ["own", "shared"])
@pytest.mark.parametrize("resource", [False, True])
def test_a_variable_is_replaced_by_a_variable_or_a_value_wherever_it_is_read(resource: bool, variables: Any) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        with v1.variable_scope("", use_resource=resource):
            weights = v1.get_variable("weights", [4, 4])
            same_kind = v1.get_variable("same", [4, 4])
        other_kind = v1.get_variable("other", [4, 4], use_resource=not resource)
        read = weights.value()
        y = tf.matmul(x, weights) + tf.nn.embedding_lookup(weights, [0])
        values: list[Any] = [same_kind, other_kind, tf.fill([4, 4], 2.0), np.full((4, 4), 2.0, np.float32)]
        copies = [duplicate(y, x, variables=variables, replace={weights: value}) for value in values]
        copies.append(duplicate(y, x, variables=variables, replace={read: values[2]}))
        fed = duplicate(y, [x, weights], variables=variables)
        assert not any(one.variables for one in [*copies, fed])
    with ready(graph) as session:
        filled = [session.run(one) if isinstance(one, tf.Variable) else np.full((4, 4), 2.0) for one in values]
        for copy, value in zip(copies, [*filled, filled[2]], strict=True):
            found = session.run(copy.outputs[0], {copy.inputs[0]: DATA})
            np.testing.assert_allclose(found, DATA @ value + value[0], rtol=1e-5)
        found = session.run(fed.outputs[0], {fed.inputs[0]: DATA, fed.inputs[1]: filled[2]})
        np.testing.assert_allclose(found, DATA @ filled[2] + filled[2][0], rtol=1e-5)


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


@pytest.mark.parametrize("resource", [False, True])
def test_loops_and_branches_are_copied_with_their_gradients(control_flow: str, resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        with v1.variable_scope("", use_resource=resource):
            weights = v1.get_variable("weights", [4, 4])
            table = v1.get_variable("table", [9, 4])

        def body(step: tf.Tensor, unused: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, ...]:
            state = tf.cond(
                tf.equal(step % 2, 0),
                lambda: tf.tanh(tf.matmul(state, weights)),
                lambda: state + tf.nn.embedding_lookup(table, [step]) @ weights,
            )
            return step + 1, unused + 1, state

        *_, y = tf.while_loop(lambda step, *_: step < 3, body, [0, 0, x])
        wanted = tf.gradients(y, [x, weights, table])  # what a gradient adds to a loop is not part of the output
        copy = duplicate(y, x)
        shared = duplicate(y, x, variables="shared")
        gradients = tf.gradients(copy.outputs[0], [copy.inputs[0], copy[weights], copy[table]])
        others = tf.gradients(shared.outputs[0], [shared.inputs[0], weights, table])
        again = duplicate(copy.outputs[0], copy.inputs[0], scope="again")
        wanted, gradients, others = (
            [tf.convert_to_tensor(one) for one in each] for each in (wanted, gradients, others)
        )
    with ready(graph) as session:
        feed = dict.fromkeys([x, copy.inputs[0], shared.inputs[0], again.inputs[0]], DATA)
        copy_values(session, copy)
        copy_values(session, again)
        found = session.run([y, copy.outputs[0], shared.outputs[0], again.outputs[0]], feed)
        for one in found[1:]:
            np.testing.assert_array_equal(one, found[0])
        for expected, *rest in zip(*session.run([wanted, gradients, others], feed), strict=True):
            for one in rest:
                np.testing.assert_array_equal(one, expected)


def test_a_replaced_variable_is_replaced_within_a_loop(control_flow: str) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 4], use_resource=True)
        _, y = tf.while_loop(lambda step, _: step < 2, lambda step, one: (step + 1, one @ weights), [0, x])
        value = tf.constant(DATA[:4])
        copy = duplicate(y, x, replace={weights: value})
        (gradient,) = tf.gradients(copy.outputs[0], value)
    with v1.Session(graph=graph) as session:
        found, _ = session.run([copy.outputs[0], gradient], {copy.inputs[0]: DATA})
    np.testing.assert_allclose(found, DATA @ DATA[:4] @ DATA[:4], rtol=1e-4)


def noisy(x: tf.Tensor) -> tf.Tensor:
    noise = tf.function(lambda one: one + tf.random.uniform([4], seed=3))
    return tf.function(lambda one: noise(one) * 2)(x) + tf.random.normal([4], seed=4)


def test_random_ops_and_initial_values_get_fresh_seeds_unless_they_are_to_be_kept() -> None:
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4], initializer=v1.random_normal_initializer(seed=5))
        with_stateless = v1.get_variable("stateless", initializer=tf.random.stateless_uniform([4], seed=[1, 2]))
        y = noisy(x)
        z = weights + with_stateless
        fresh, kept = duplicate([y, z], x, scope="fresh"), duplicate([y, z], x, scope="kept", keep_seeds=True)
        other = duplicate([y, z], x, scope="other")
    with ready(graph) as session:
        feed = dict.fromkeys([x, fresh.inputs[0], kept.inputs[0], other.inputs[0]], DATA)
        values = session.run(
            [
                [weights, with_stateless, y],
                *([copy[weights], copy[with_stateless], copy.outputs[0]] for copy in (kept, fresh, other)),
            ],
            feed,
        )
    for same, *different in zip(*values, strict=True):
        np.testing.assert_array_equal(same, different[0])
        assert not np.array_equal(same, different[1])
        assert not np.array_equal(different[1], different[2])


def test_fresh_seeds_are_the_same_when_the_copy_is_made_again() -> None:
    def values() -> Array:
        with tf.Graph().as_default() as graph:
            v1.set_random_seed(1)
            weights = v1.get_variable("weights", [4])
            copy = duplicate(weights, scope="fresh")
        with ready(graph) as session:
            found: Array = session.run(copy.outputs[0])
            return found

    np.testing.assert_array_equal(values(), values())


class Functions:
    """What people write with tf.function, called from a v1 graph."""

    def __init__(self, weights: tf.Variable) -> None:
        self.weights = weights
        self.inner = tf.function(lambda one: tf.nn.softplus(one @ self.weights))

    @tf.function
    def loop(self, x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = self.inner(x) if tf.reduce_sum(x) > 0 else tf.split(x, 2, axis=1)[1] @ self.weights[:2]
        return x

    @tf.function
    def noisy(self, x: tf.Tensor) -> tf.Tensor:
        return self.inner(x) * tf.random.uniform([4], seed=3)

    @tf.function
    def counting(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values, at = tf.nn.top_k(x @ self.weights, 2)
        self.weights.assign_add(tf.ones_like(self.weights))
        return values, at


@pytest.mark.parametrize("name", ["inner", "loop", "noisy"])
@pytest.mark.parametrize("differentiated", [False, True])
def test_functions_in_a_copy_have_the_gradients_that_they_have_in_its_source(name: str, differentiated: bool) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 4], use_resource=True)
        functions = Functions(weights)  # a method of tf.function's keeps no hold on it
        y = getattr(functions, name)(x)
        if differentiated:
            tf.gradients(y, weights)  # the source's call gives more from now on
        copy = duplicate(y, x, keep_seeds=True)
        fresh = duplicate(y, x)
        elsewhere = duplicate(y, x, graph=tf.Graph())
        gradients = [*tf.gradients(y, [x, weights]), *tf.gradients(copy.outputs[0], [copy.inputs[0], copy[weights]])]
        (other,) = tf.gradients(fresh.outputs[0], fresh[weights])
    with elsewhere.graph.as_default():
        (there,) = tf.gradients(elsewhere.outputs[0], elsewhere[weights])
    with ready(graph) as session:
        copy_values(session, copy)
        feed = dict.fromkeys([x, copy.inputs[0], fresh.inputs[0]], np.abs(DATA))
        found = session.run([*gradients, y, copy.outputs[0], other], feed)
    for one, another in ((0, 2), (1, 3), (4, 5)):
        np.testing.assert_allclose(found[one], found[another], rtol=1e-6)
    assert np.abs(found[6]).sum() > 0
    with ready(elsewhere.graph) as session:
        assert np.abs(session.run(there, {elsewhere.inputs[0]: np.abs(DATA)})).sum() > 0


def test_what_a_function_does_beside_its_results_is_done_by_the_copy() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 4], use_resource=True, initializer=v1.zeros_initializer())
        functions = Functions(weights)
        _, at = functions.counting(x)
        copy = duplicate(at, x)
    with ready(graph) as session:
        assert session.run(copy.outputs[0], {copy.inputs[0]: DATA}).shape == (7, 2)
        np.testing.assert_array_equal(session.run(copy[weights]), np.ones((4, 4)))
        np.testing.assert_array_equal(session.run(weights), np.zeros((4, 4)))


@pytest.mark.parametrize("control_flow", ["control flow v1"], indirect=True)
def test_initial_values_that_read_other_variables_read_their_copies(control_flow: str) -> None:
    with tf.Graph().as_default() as graph:
        first = v1.Variable(tf.random.normal([4]), name="first", use_resource=False)
        second = v1.Variable(first.initialized_value() * 2, name="second", use_resource=False)
        copy = duplicate(second.value())
    assert sorted(copy.variables) == ["first", "second"]
    with ready(graph) as session:
        one, two, original = session.run([copy[first], copy[second], first])
    np.testing.assert_array_equal(two, one * 2)
    assert not np.array_equal(one, original)


def test_an_initial_value_that_is_fed_is_fed_to_both() -> None:
    with tf.Graph().as_default() as graph:
        words = v1.placeholder(tf.float32, [9, 4], name="words")
        table = v1.Variable(words, name="table", use_resource=True)
        ids = v1.placeholder(tf.int32, [None], name="ids")
        copy = duplicate(tf.nn.embedding_lookup(table, ids), ids)
        with v1.Session() as session:
            value = np.ones((9, 4), np.float32)
            session.run(v1.global_variables_initializer(), {words: value})
            np.testing.assert_array_equal(session.run(copy[table]), value)
    assert graph is copy.graph


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


def test_a_copy_goes_to_another_graph_and_another_device() -> None:
    with tf.Graph().as_default() as graph, tf.device("/GPU:0"):
        x = v1.placeholder(tf.int64, [None, 4], name="x")
        rows = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([7, 8], [1.0, 2.0], tf.int64), -1.0)
        doubled = tf.function(lambda one: one * 2)
        y = doubled(dense(rows.lookup(x), 3, "one"))
    other = tf.Graph()
    copy = duplicate(y, x, scope="copy", graph=other, device="/CPU:0")
    assert {one.device for one in other.get_operations()} == {"/device:CPU:0"}
    assert len(graph.get_collection(KEYS.GLOBAL_VARIABLES)) == len(other.get_collection(KEYS.GLOBAL_VARIABLES)) == 2
    with ready(other) as session:
        assert session.run(copy.outputs[0], {copy.inputs[0]: [[7, 8, 7, 9]]}).shape == (1, 3)
    here = duplicate(y, x, scope="copy", device="/CPU:0")
    assert here.variables["one/kernel"].device == "/device:CPU:0"
    assert copy["x"] is copy.inputs[0]


def test_graphs_without_collections_have_their_variables_copied_too() -> None:
    with tf.Graph().as_default() as first:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        dense(dense(x, 3, "one"), 3, "two", resource=False)
    with tf.Graph().as_default() as bare:
        tf.graph_util.import_graph_def(first.as_graph_def(), name="")
        copy = duplicate("two/Relu:0", "x")
        with v1.Session() as session:
            session.run(v1.variables_initializer(list(copy.variables.values())))
            assert session.run(copy.outputs[0], {copy.inputs[0]: DATA}).shape == (7, 3)
    assert bare is copy.graph


def test_declared_shapes_are_those_of_the_copy() -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, None, name="x")
        y = x * 1.0
        y.set_shape([None, 4])
        assert duplicate(y, x).outputs[0].shape.as_list() == [None, 4]


def test_scopes_around_the_call_do_not_reach_into_the_copy() -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = x * 2.0
        with v1.name_scope("outer"), tf.control_dependencies([y]), tf.device("/CPU:1"):
            copy = duplicate(y, x, scope="copy")
        again = duplicate(y, x, scope="copy")
        assert (copy.outputs[0].name, copy.outputs[0].op.control_inputs, copy.outputs[0].device) == (
            "copy/mul:0",
            [],
            "",
        )
        assert again.scope == "copy_1"


def constraint(weights: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(weights, 0.0, 1.0)


def test_a_constraint_holds_for_the_copy() -> None:
    with tf.Graph().as_default():
        weights = v1.get_variable("weights", [4], constraint=constraint)
        assert duplicate(weights)[weights].constraint is constraint


# What is asked for wrongly --------------------------------------------------------------------------------------------


def network() -> tuple[tf.Tensor, tf.Tensor]:
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    rate = v1.placeholder(tf.float32, [], name="rate")
    v1.placeholder(tf.float32, [], name="unrelated")
    return x, tf.identity(dense(x, 3, "one") * rate, name="y")


REFUSED: dict[str, tuple[Callable[[tf.Tensor, tf.Tensor], Any], str]] = {
    "an unknown output": (lambda x, y: duplicate("z", [x]), r"no tensor 'z'; its placeholders: x, rate, unrelated"),
    "an unknown input": (lambda x, y: duplicate(y, ["z"]), r"no tensor 'z'; its placeholders: x, rate, unrelated"),
    "an unfed placeholder": (lambda x, y: duplicate(y, [x]), "placeholder 'rate' is needed .* not among the inputs"),
    "an input of no use": (
        lambda x, y: duplicate(y, [x, "rate", "unrelated"]),
        "no output depends on 'unrelated:0'; the outputs: y:0",
    ),
    "a replacement of no use": (
        lambda x, y: duplicate(y, [x, "rate"], replace={"unrelated": 1.0}),
        "no output depends on 'unrelated:0'",
    ),
    "another dtype": (
        lambda x, y: duplicate(y, ["rate"], replace={x: tf.zeros([7, 4], tf.int32)}),
        r"'x:0' does not fit: expected float32 \(None, 4\), found int32 \(7, 4\)",
    ),
    "another shape": (
        lambda x, y: duplicate(y, ["rate"], replace={x: tf.zeros([7, 5])}),
        r"'x:0' does not fit: expected float32 \(None, 4\), found float32 \(7, 5\)",
    ),
    "a value of another dtype": (lambda x, y: duplicate(y, x, replace={"rate": "much"}), "no float32 tensor"),
    "a variable of another shape": (
        lambda x, y: duplicate(y, [x, "rate"], replace={v1.global_variables()[0]: tf.zeros([3, 3])}),
        r"'one/kernel:0' does not fit: expected float32 \(4, 3\), found float32 \(3, 3\)",
    ),
    "an operation as input": (lambda x, y: duplicate(y, y.op), "'y' is an operation"),
    "no tensor at all": (lambda x, y: duplicate(y, [3.0]), "expected a tensor or variable of a graph.* found 3.0"),
    "tensors of two graphs": (lambda x, y: duplicate(y, elsewhere()), "of another graph"),
    "a replacement of another graph": (
        lambda x, y: duplicate(y, "rate", replace={x: elsewhere()}),
        "not of the graph the copy goes to",
    ),
    "sharing between graphs": (
        lambda x, y: duplicate(y, [x, "rate"], variables="shared", graph=tf.Graph()),
        "expected 'own', since graphs share no variables, found 'shared'",
    ),
    "no outputs": (lambda x, y: duplicate([], x), "expected outputs to copy, found none"),
    "a scope that is no name": (lambda x, y: duplicate(y, x, scope="a b"), "scope: expected .* found 'a b'"),
    "a scope that ends": (lambda x, y: duplicate(y, x, scope="a/"), "scope: expected .* found 'a/'"),
    "no scope": (lambda x, y: duplicate(y, x, scope=""), "scope: expected .* found ''"),
    "a word of one's own": (lambda x, y: duplicate(y, x, variables="mine"), "expected 'own' or 'shared', found 'mine'"),  # type: ignore[arg-type]
}


def elsewhere() -> tf.Tensor:
    with tf.Graph().as_default():
        return tf.zeros([7, 4], name="elsewhere")


@pytest.mark.parametrize("what", REFUSED)
def test_a_copy_that_cannot_be_made_is_refused_and_nothing_added(what: str) -> None:
    call, message = REFUSED[what]
    with tf.Graph().as_default() as graph:
        x, y = network()
        before = len(graph.get_operations())
        with pytest.raises(GraphError, match=message):
            call(x, y)
        added = [one.name for one in graph.get_operations()[before:]]
        assert not [one for one in added if one.startswith("copy")]


def test_an_input_pipeline_is_not_copied_but_what_it_gives_can_be_an_input() -> None:
    with tf.Graph().as_default():
        queue = v1.FIFOQueue(3, [tf.float32], [[4]])
        batch = queue.dequeue(name="batch")
        with pytest.raises(GraphError, match="QueueDequeueV2 'batch' feeds the outputs from an input pipeline"):
            duplicate(batch * 2)
        assert duplicate(batch * 2, batch).inputs[0].name == "copy/batch:0"


@pytest.mark.parametrize("control_flow", ["control flow v1"], indirect=True)
def test_a_tensor_within_a_loop_cannot_be_cut_out_of_it(control_flow: str) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [4], name="x")
        _, y = tf.while_loop(lambda step, _: step < 2, lambda step, one: (step + 1, one * 2), [0, x])
        within = next(one for one in graph.get_operations() if one.type == "Mul").outputs[0]
        with pytest.raises(GraphError, match="lies within a loop or branch"):
            duplicate(y, [x, within])
        with pytest.raises(GraphError, match="lies within a loop or branch"):
            duplicate(within, x)


def test_a_variable_that_nothing_initialises_is_refused_by_name() -> None:
    with tf.Graph().as_default():
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[4], name="lonely")
        y = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) * 2
        with pytest.raises(GraphError, match="variable 'lonely' is in no collection"):
            duplicate(y)
        assert duplicate(y, variables="shared").outputs


def test_what_is_not_part_of_a_copy_is_not_found_in_it() -> None:
    with tf.Graph().as_default():
        x, y = network()
        copy = duplicate(y, [x, "rate"])
        with pytest.raises(GraphError, match="'unrelated:0' is not part of the copy 'copy'"):
            copy["unrelated"]
