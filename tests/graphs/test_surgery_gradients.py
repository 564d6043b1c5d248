"""A copy has the gradients of its original, through loops, branches and functions; its random numbers are fresh."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.function import Defun

from paramsync.errors import GraphError
from paramsync.graphs.surgery import Copy, duplicate
from tests.support.v1_drafts import DATA, control_flow, copy_values, ready

v1 = tf.compat.v1
SEQUENCES = np.random.default_rng(0).normal(size=(7, 5, 4)).astype(np.float32)


def gradients_of(y: tf.Tensor, over: list[Any]) -> list[tf.Tensor]:
    """The gradients of a loss of `y`; none is missing."""
    found = tf.gradients(tf.reduce_sum(tf.square(y - 1.0)), over)
    assert not [one for one, gradient in zip(over, found, strict=True) if gradient is None]
    return [tf.convert_to_tensor(one) for one in found]


class LstmCell:
    """What a script of the time took from tf.nn.rnn_cell, which Keras 3 no longer gives."""

    state_size = (3, 3)
    output_size = 3

    def zero_state(self, rows: Any, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.zeros([rows, 3], dtype), tf.zeros([rows, 3], dtype)

    def __call__(self, inputs: tf.Tensor, state: Any, scope: str | None = None) -> tuple[tf.Tensor, Any]:
        kernel = v1.get_variable("kernel", [inputs.shape[-1] + 3, 12])
        bias = v1.get_variable("bias", [12])
        memory, hidden = state
        gates = tf.concat([inputs, hidden], 1) @ kernel + bias
        into, new, forget, out = tf.split(gates, 4, axis=1)
        memory = memory * tf.sigmoid(forget + 1.0) + tf.sigmoid(into) * tf.tanh(new)
        hidden = tf.tanh(memory) * tf.sigmoid(out)
        return hidden, (memory, hidden)


def _weights(name: str = "weights", rows: int = 4) -> tf.Variable:
    return v1.get_variable(name, [rows, 4])


def last_outputs(x: tf.Tensor) -> tf.Tensor:
    outputs, _ = v1.nn.dynamic_rnn(LstmCell(), x, dtype=tf.float32)
    return outputs[:, -1] @ _weights("head", 3)


def accumulator(x: tf.Tensor) -> tf.Tensor:
    weights = _weights()

    def body(step: tf.Tensor, state: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        state = tf.tanh(state @ weights)
        return step + 1, state, total + state * x[:, step]

    return tf.while_loop(lambda step, *_: step < 5, body, [0, x[:, 0], tf.zeros_like(x[:, 0])])[2]


def nested(x: tf.Tensor) -> tf.Tensor:
    weights = _weights()

    def inner(step: tf.Tensor, state: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        state = tf.tanh(state @ weights)
        return step + 1, state, total + state

    def outer(step: tf.Tensor, state: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        _, _, found = tf.while_loop(lambda at, *_: at < 2, inner, [0, state, tf.zeros_like(state)])
        return step + 1, found, total + found

    return tf.while_loop(lambda step, *_: step < 3, outer, [0, x[:, 0], tf.zeros_like(x[:, 0])])[2]


def branches(x: tf.Tensor) -> tf.Tensor:
    weights = _weights()

    def body(step: tf.Tensor, state: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        state = tf.cond(tf.equal(step % 2, 0), lambda: tf.tanh(state @ weights), lambda: state * 0.5)
        return step + 1, state, tf.cond(step > 1, lambda: total + state, lambda: total)

    return tf.while_loop(lambda step, *_: step < 5, body, [0, x[:, 0], tf.zeros_like(x[:, 0])])[2]


def loop_in_branch(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.reduce_sum(x) > 1e9, lambda: x[:, 0], lambda: accumulator(x))


LOOPS = {build.__name__: build for build in (last_outputs, accumulator, nested, branches, loop_in_branch)}


@pytest.mark.parametrize(
    ("name", "loops"), [*((name, "v1") for name in LOOPS), ("last_outputs", "v2"), ("nested", "v2")]
)
def test_copies_of_loops_have_the_gradients_of_the_originals(name: str, loops: str) -> None:
    with tf.Graph().as_default() as graph, control_flow(loops):
        x = v1.placeholder(tf.float32, [None, 5, 4], name="x")
        y = LOOPS[name](x)
        variables = v1.trainable_variables()
        own, shared = duplicate(y, x, scope="own"), duplicate(y, x, scope="shared", variables="shared")
        found = [
            gradients_of(own.outputs[0], [own.inputs[0], *(own[one] for one in variables)]),
            gradients_of(shared.outputs[0], [shared.inputs[0], *variables]),
        ]
        wanted = gradients_of(y, [x, *variables])
    assert_same(graph, [own, shared], wanted, found, {x: SEQUENCES})


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("resource", [False, True])
def test_copies_of_copies_and_of_what_was_differentiated_have_them_too(version: str, resource: bool) -> None:
    with tf.Graph().as_default() as graph, control_flow(version):
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
        wanted = gradients_of(y, [x, weights, table])  # adds nodes to the loop that are no part of the output
        after = duplicate(y, x, scope="after")
        again = duplicate(after.outputs[0], after.inputs[0], scope="again")
        found = [
            gradients_of(after.outputs[0], [after.inputs[0], after[weights], after[table]]),
            gradients_of(again.outputs[0], [again.inputs[0], again[after[weights]], again[after[table]]]),
        ]
    assert_same(graph, [after, again], wanted, found, {x: DATA})


def test_a_copied_call_marked_noinline_has_the_gradients_of_the_original() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        with v1.variable_scope("", use_resource=True):
            weights = _weights()

        @tf.function(experimental_attributes={"_noinline": True})
        def called(x: tf.Tensor) -> tf.Tensor:
            return tf.while_loop(lambda step, _: step < 3, lambda step, y: (step + 1, tf.tanh(y @ weights)), [0, x])[1]

        y = called(x)
        copy = duplicate(y, x, scope="copy")
        wanted, found = gradients_of(y, [x, weights]), gradients_of(copy.outputs[0], [copy.inputs[0], copy[weights]])
    assert_same(graph, [copy], wanted, [found], {x: DATA})


def assert_same(graph: tf.Graph, copies: list[Copy], wanted: Any, found: list[Any], feed: dict[Any, Any]) -> None:
    (given,) = feed.values()
    with ready(graph) as session:
        for one in copies:
            copy_values(session, one)
        expected, *others = session.run([wanted, *found], feed | {one.inputs[0]: given for one in copies})
    assert all(np.abs(one).sum() > 0 for one in expected)
    for other in others:
        for one, another in zip(expected, other, strict=True):
            np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_cut_at_the_end_of_a_loop_or_branch_leaves_it_out(version: str) -> None:
    with tf.Graph().as_default() as graph, control_flow(version):
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 4])
        _, y, z = tf.while_loop(
            lambda step, *_: step < 3, lambda step, y, z: (step + 1, y @ weights, z + y), [0, x, tf.zeros_like(x)]
        )
        branch = tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x)
        after = duplicate(y + 1, y)
        half = duplicate(y + z, [x, y], scope="half")  # z needs the loop
        alone = duplicate(branch * 2, branch, scope="alone")
        (gradient,) = tf.gradients(half.outputs[0], half.inputs[0])
    assert not after.variables
    with ready(graph) as session:
        ones = np.ones((2, 4), np.float32)
        assert session.run(after.outputs[0], {after.inputs[0]: ones}).tolist() == (ones + 1).tolist()
        assert session.run(alone.outputs[0], {alone.inputs[0]: ones}).tolist() == (ones * 2).tolist()
        feed = dict.fromkeys(half.inputs, ones)
        kernel, found, slope = session.run([half.variables["weights"], half.outputs[0], gradient], feed)
    np.testing.assert_allclose(found, ones + ones + ones @ kernel + ones @ kernel @ kernel, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(slope, ones + ones @ kernel.T + ones @ kernel.T @ kernel.T, rtol=1e-4, atol=1e-5)


@control_flow("v1")
def test_a_tensor_within_a_loop_cannot_be_cut_out_of_it() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [4], name="x")
        _, y = tf.while_loop(lambda step, _: step < 2, lambda step, one: (step + 1, one * 2), [0, x])
        within = next(one for one in graph.get_operations() if one.type == "Mul").outputs[0]
        with pytest.raises(GraphError, match="lies within a loop or branch"):
            duplicate(y, [x, within])
        with pytest.raises(GraphError, match="lies within a loop or branch"):
            duplicate(within, x)


@control_flow("v1")
def test_initial_values_that_read_other_variables_read_their_copies() -> None:
    with tf.Graph().as_default() as graph:
        first = v1.Variable(tf.random.normal([4]), name="first", use_resource=False)
        second = v1.Variable(first.initialized_value() * 2, name="second", use_resource=False)
        copy = duplicate(second.value())
    with ready(graph) as session:
        one, two, original = session.run([copy[first], copy[second], first])
    np.testing.assert_array_equal(two, one * 2)
    assert not np.array_equal(one, original)


def test_random_ops_and_initial_values_get_fresh_seeds_unless_they_are_to_be_kept() -> None:
    def noisy(x: tf.Tensor) -> tf.Tensor:
        noise = tf.function(lambda one: one + tf.random.uniform([4], seed=3))
        return tf.function(lambda one: noise(one) * 2)(x) + tf.random.normal([4], seed=4)

    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4], initializer=v1.random_normal_initializer(seed=5))
        with_stateless = v1.get_variable("stateless", initializer=tf.random.stateless_uniform([4], seed=[1, 2]))
        ends = [noisy(x), weights + with_stateless]
        kept = duplicate(ends, x, scope="kept", keep_seeds=True)
        fresh, other = duplicate(ends, x, scope="fresh"), duplicate(ends, x, scope="other")
        again = duplicate(ends, x, scope="fresh", graph=tf.Graph())
    copies = (kept, fresh, other)
    with ready(graph) as session:
        feed = dict.fromkeys([x, *(copy.inputs[0] for copy in copies)], DATA)
        of_copies = [[copy[weights], copy[with_stateless], copy.outputs[0]] for copy in copies]
        values = session.run([[weights, with_stateless, ends[0]], *of_copies], feed)
    for same, *different in zip(*values, strict=True):
        np.testing.assert_array_equal(same, different[0])
        assert not np.array_equal(same, different[1])
        assert not np.array_equal(different[1], different[2])
    with ready(again.graph) as session:  # fresh seeds are the same each time
        np.testing.assert_array_equal(session.run(again[with_stateless]), values[2][1])


def test_functions_that_are_ops_get_fresh_seeds_unless_they_are_to_be_kept() -> None:
    draw = Defun(func_name="draw")(lambda: tf.random.uniform([4], seed=3))
    within = Defun(tf.float32, func_name="within")(lambda x: x + draw())
    still = Defun(tf.float32, func_name="still")(lambda x: x * 2)
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)
        x = v1.placeholder(tf.float32, [4], name="x")
        y = within(still(x))
        kept, fresh = duplicate(y, x, scope="kept", keep_seeds=True), duplicate(y, x, scope="fresh")
        other = duplicate(y, x, scope="other")
    ops = [copy.outputs[0].op.type for copy in (kept, fresh, other)]
    assert ops[0] == y.op.type
    assert len(set(ops)) == 3
    assert fresh[y.op.inputs[0]].op.type == y.op.inputs[0].op.type
    with ready(graph) as session:
        copies = (kept, fresh, other)
        feed = dict.fromkeys([x, *(copy.inputs[0] for copy in copies)], DATA[0])
        original, same, *different = session.run([y, *(copy.outputs[0] for copy in copies)], feed)
    np.testing.assert_array_equal(original, same)
    assert not np.array_equal(original, different[0])
    assert not np.array_equal(different[0], different[1])


class Functions:
    """Functions as people write them with tf.function, called from a v1 graph."""

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


@pytest.mark.parametrize(("name", "differentiated"), [("loop", False), ("loop", True), ("noisy", False)])
def test_functions_in_a_copy_have_the_gradients_that_they_have_in_its_source(name: str, differentiated: bool) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 4], use_resource=True)
        functions = Functions(weights)  # a method of tf.function's keeps no hold on it
        y = getattr(functions, name)(x)
        if differentiated:
            tf.gradients(y, weights)  # from now on the source's call gives more
        copy = duplicate(y, x, keep_seeds=True)
        elsewhere = duplicate(y, x, graph=tf.Graph())
        gradients = [*tf.gradients(y, [x, weights]), *tf.gradients(copy.outputs[0], [copy.inputs[0], copy[weights]])]
    with elsewhere.graph.as_default():
        (there,) = tf.gradients(elsewhere.outputs[0], elsewhere[weights])
    with ready(graph) as session:
        copy_values(session, copy)
        feed = dict.fromkeys([x, copy.inputs[0]], np.abs(DATA))
        found = session.run([*gradients, y, copy.outputs[0]], feed)
    for one, another in ((0, 2), (1, 3), (4, 5)):
        np.testing.assert_allclose(found[one], found[another], rtol=1e-6)
    with ready(elsewhere.graph) as session:
        assert np.abs(session.run(there, {elsewhere.inputs[0]: np.abs(DATA)})).sum() > 0


def test_a_copy_has_the_effects_of_its_functions_on_its_own_variables() -> None:
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
