"""Whether rows of several requests may go in one call: known of a graph by its ops, and wrong for none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from paramsync.graphs.capturing import Capture, capture
from paramsync.inference import batchable
from paramsync.inference.batchable import Traits
from paramsync.inference.resident import Resident
from paramsync.inference.rows import are_apart, is_elementwise
from paramsync.sources.opening import open_source
from paramsync.version import Version

FLOATS = [tf.TensorSpec([None, 4], tf.float32, name="x")]
NUMBERS = [tf.TensorSpec([None], tf.int32, name="x")]
WORDS = [tf.TensorSpec([None], tf.string, name="x")]
IMAGES = [tf.TensorSpec([None, 6, 6, 3], tf.float32, name="x")]
TWO = [*FLOATS, tf.TensorSpec([None, 4], tf.float32, name="t")]

Spec = list[tf.TensorSpec]
Computed = Callable[..., Any]
layers = keras.layers


def made(specs: Spec, function: Computed) -> Capture:
    class Model(tf.Module):
        @tf.function(input_signature=specs)
        def __call__(self, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": function(*inputs)}

    return capture(Model())


def split(x: tf.Tensor) -> tf.Tensor:
    return tf.strings.split(x).to_tensor()


def called(function: Computed) -> Computed:
    """The same as exports have it: in a function that a function calls, of which some results are not used."""

    @tf.function(reduce_retracing=True)
    def inner(*inputs: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tf.identity(inputs[0]), *tf.split(tf.zeros([2]), 2), function(*inputs)

    @tf.function(reduce_retracing=True)
    def outer(*inputs: tf.Tensor) -> tf.Tensor:
        return tf.identity(inner(*inputs)[-1])

    found: Computed = outer
    return found


Form = Callable[[Computed], Computed]
in_calls_too = pytest.mark.parametrize("form", [lambda function: function, called], ids=["plain", "in calls"])

MIXED: dict[str, tuple[Spec, Computed]] = {  # each gives the same for many batches, and something else for others
    "a maximum of all, where it is above 1": (FLOATS, lambda x: x / tf.maximum(1.0, tf.reduce_max(x))),
    "a small part of the mean": (FLOATS, lambda x: 1000.0 + x * 1e-3 * tf.reduce_mean(x)),
    "products with other rows": (
        FLOATS,
        lambda x: x + tf.nn.relu(tf.reduce_sum(tf.matmul(x, x, transpose_b=True), 1, keepdims=True) - 100.0),
    ),
    "another input's maximum": (TWO, lambda x, t: x + tf.nn.relu(tf.reduce_max(t) - 1.0)),
    "a maximum of what rows were made one": (FLOATS, lambda x: x - tf.nn.relu(tf.reduce_max(tf.reshape(x, [1, -1])))),
    "a sum along rows": (FLOATS, tf.cumsum),
    "rows in another order": (FLOATS, lambda x: tf.sort(x, axis=0)),
    "rows beyond the third": (FLOATS, lambda x: x * tf.cast(tf.range(tf.shape(x)[0]) < 3, tf.float32)[:, None]),
    "more than four rows": (FLOATS, lambda x: tf.cond(tf.shape(x)[0] > 4, lambda: 2.0 * x, lambda: x)),
    "the maximum of numbers": (NUMBERS, lambda x: x - tf.reduce_max(x)),
    "how many are equal": (NUMBERS, lambda x: tf.gather(tf.math.bincount(x, minlength=100), x)),
    "means with padding": (WORDS, lambda x: tf.reduce_mean(tf.cast(tf.strings.length(split(x)), tf.float32), 1)),
    "norms of a batch": (
        IMAGES,
        lambda x: tf.compat.v1.nn.fused_batch_norm(x, tf.ones([3]), tf.zeros([3]), is_training=True)[0],
    ),
    "places in others": (FLOATS, lambda x: tf.gather(x, tf.zeros([1], tf.int32))),
    "a transposition and back": (FLOATS, lambda x: tf.transpose(tf.nn.softmax(tf.transpose(x) * 1e-9))),
}


@in_calls_too
@pytest.mark.parametrize(("specs", "function"), MIXED.values(), ids=MIXED)
def test_what_depends_on_other_rows_is_found(specs: Spec, function: Computed, form: Form) -> None:
    assert not are_apart(made(specs, form(function)).graph, "serving_default")


APART: dict[str, tuple[Spec, Computed]] = {
    "layers": (FLOATS, lambda x: tf.nn.relu(tf.matmul(x, tf.ones([4, 3])) + tf.ones([3]))),
    "norms of rows": (FLOATS, lambda x: tf.linalg.l2_normalize(x, axis=-1)),
    "the largest": (FLOATS, lambda x: tf.argmax(x, -1)),
    "a table of vectors": (NUMBERS, lambda x: tf.gather(tf.random.stateless_uniform([7, 3], [1, 2]), x)),
    "one of many": (NUMBERS, lambda x: tf.one_hot(x, 5)),
    "a shape without a count": (IMAGES, lambda x: tf.reshape(x, [-1, 36, 3])),
    "zeros for each": (FLOATS, lambda x: tf.concat([x, tf.zeros([tf.shape(x)[0], 2])], 1)),
    "a part of each": (FLOATS, lambda x: x[:, 1] * x[..., 0]),
    "two inputs": (TWO, lambda x, t: tf.einsum("bi,bj->bij", x, t)),
    "words": (WORDS, lambda x: tf.strings.to_hash_bucket_fast(tf.strings.lower(x), 100)),
}


@in_calls_too
@pytest.mark.parametrize(("specs", "function"), APART.values(), ids=APART)
def test_what_keeps_rows_apart_is_batched(specs: Spec, function: Computed, form: Form) -> None:
    assert are_apart(made(specs, form(function)).graph, "serving_default")


def checked(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_less(tf.linalg.trace(tf.matmul(x, x)), 1.0)]):
        return tf.identity(x)


ANY_SHAPE: dict[str, tuple[Spec, Computed, bool]] = {
    "half plus two": (FLOATS, lambda x: x / 2.0 + 2.0, True),
    "of two inputs": (TWO, lambda x, t: x + t, False),
    "a vector, to which a scalar is broadcast": (FLOATS, lambda x: x + tf.ones([4]), False),
    "a product": (FLOATS, lambda x: tf.matmul(x, tf.ones([4, 3])), False),
    "a sum": (FLOATS, lambda x: tf.reduce_sum(x, -1), False),
    "an image": (IMAGES, lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"), False),
    "half, once something else is computed": (FLOATS, checked, False),
}


@in_calls_too
@pytest.mark.parametrize(("specs", "function", "expected"), ANY_SHAPE.values(), ids=ANY_SHAPE)
def test_any_shape_is_taken_only_by_elementwise_computations(
    specs: Spec, function: Computed, expected: bool, form: Form
) -> None:
    assert is_elementwise(made(specs, form(function)).graph, "serving_default") is expected


@pytest.mark.parametrize(("first", "expected"), [(lambda x: 2.0 * x, True), (lambda x: x - tf.reduce_max(x), False)])
def test_one_function_called_several_times_is_looked_at_each_time(first: Computed, expected: bool) -> None:
    twice = tf.function(lambda x, t: (x + t, x - t))
    computed = made(FLOATS, called(lambda x: twice(twice(x, x)[1], twice(x, first(x))[0])[0]))
    assert are_apart(computed.graph, "serving_default") is expected


def test_a_loop_in_a_call_is_not_looked_into() -> None:
    def looped(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda at, _: at < 3, lambda at, y: (at + 1, y * 2.0), (0, x))[1]

    assert not are_apart(made(FLOATS, called(looped)).graph, "serving_default")


def attention() -> keras.Model:
    x = keras.Input((6, 8))
    seen = layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(x, x) + x)
    return keras.Model(x, layers.Dense(2)(layers.GlobalAveragePooling1D()(seen)))


def convolutions() -> keras.Model:
    stack = [layers.Rescaling(1 / 255), layers.SeparableConv2D(4, 3), layers.BatchNormalization(), layers.Flatten()]
    return keras.Sequential([keras.Input((8, 8, 3)), *stack, layers.Dropout(0.5), layers.Dense(2, "softmax")])


def gated() -> keras.Model:
    return keras.Sequential([keras.Input((8,)), layers.Dense(4, "silu"), layers.Dense(4, "gelu"), layers.Dense(2)])


@pytest.mark.parametrize("form", ["the model", "its export"])
@pytest.mark.parametrize("model", [attention, convolutions, gated])
def test_usual_networks_are_batched(model: Callable[[], keras.Model], form: str, tmp_path: Path) -> None:
    if form == "the model":
        found = capture(model())
        version = Version(
            number=1, step=1, prefix="ckpt-1", graph=found.graph.digest, step_done_at=1.0, snapshot_at=1.0
        )
        resident = Resident(version, found.graph, tuple(tf.convert_to_tensor(one) for one in found.variables))
    else:
        model().export(tmp_path / "1", verbose=False)
        source = open_source(tmp_path)
        latest = source.look().latest
        assert latest is not None
        resident = source.restore(latest, lambda progress: None)
    batchable.examine(resident)
    assert batchable.of(resident.graph, "serving_default") == Traits(together=True, prompt=True)
