"""A model whose structure or kept values change is captured again, or the publication fails with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import PublishError, UnsafeGraphError
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.graphs.capturing import capture
from paramsync.publishing.publisher import Publisher
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.training import EVERY_STEP, latest

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def network() -> keras.Sequential:
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "tanh")])
    return keras.Sequential([keras.Input((4,), name="x"), inner, keras.layers.Dense(3), keras.layers.Dense(2)])


def answer(store: Path, inputs: Any) -> Any:
    follower = Follower(Replica("m", store))
    follower.run_once()
    (name,) = follower.replica.serving().graph.signatures["serving_default"].inputs
    outputs, _ = follower.replica.predict({name: inputs})
    (found,) = outputs.values()
    return found


def with_lora_within(model: keras.Sequential) -> None:
    model.layers[0].layers[0].enable_lora(2)
    model.layers[0].layers[0].lora_kernel_b.assign(tf.ones_like(model.layers[0].layers[0].lora_kernel_b))


class Net(tf.Module):
    """A module with a Keras layer, which tf.Module does not track."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.ones([4]))
        self.layer = keras.layers.Dense(2)
        self.layer.build((None, 4))

    @tf.function(input_signature=[tf.TensorSpec([None, 4], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.layer(x * self.weight)


def expected(net: Net) -> Any:
    """What its code says, whatever was traced before."""
    return net.layer(X * net.weight)


@pytest.mark.parametrize("said", ["module", "function with a root"])
def test_a_module_or_function_is_traced_again_once_variables_are_others(tmp_path: Path, said: str) -> None:
    net = Net()
    source: Any = net
    if said != "module":
        spec = tf.TensorSpec([None, 4], name="x")
        source = capture(tf.function(lambda x: net.layer(x * net.weight)), inputs=[spec], root=net)
    with Publisher(tmp_path, source, schedule=EVERY_STEP) as publisher:
        publisher.publish(1, wait=True)
        net.weight = tf.Variable(tf.fill([4], 3.0))
        publisher.publish(2, wait=True)
        np.testing.assert_allclose(answer(tmp_path, X), expected(net), rtol=1e-6)
        net.layer.enable_lora(2)
        net.layer.lora_kernel_b.assign(tf.ones_like(net.layer.lora_kernel_b))
        publisher.publish(3, wait=True)
        np.testing.assert_allclose(answer(tmp_path, X), expected(net), rtol=1e-6)


def test_a_change_that_cannot_be_served_is_told_once_and_published_when_it_is_gone(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((3, 4), batch_size=2, name="x"), keras.layers.GRU(3, return_sequences=True)])
    with Publisher(tmp_path, model, schedule=EVERY_STEP) as publisher:
        publisher.publish(1, wait=True)
        model.add(keras.layers.GRU(3, stateful=True))
        for step in (2, 3):
            with pytest.raises(PublishError, match="keeps its state"):
                publisher.publish(step, wait=True)
        model.pop()
        publisher.publish(4, wait=True)
    assert latest(tmp_path).step == 4


class ByPython(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([1.0, 2.0])

    @tf.function(input_signature=[tf.TensorSpec([2], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(lambda value: value + 1, [x * self.w], tf.float32), [2])


def test_a_model_is_refused_too_unless_the_op_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(UnsafeGraphError, match="'PyFunc'"):
        Publisher(tmp_path, ByPython())
    with Publisher(tmp_path, ByPython(), allow_ops=["PyFunc"]) as publisher:
        publisher.publish(1, wait=True)
    with pytest.raises(UnsafeGraphError, match="'PyFunc'"):
        Replica("m", Store(tmp_path)).restore(latest(tmp_path))


# Values that layers and modules keep beside their variables -----------------------------------------------------------


LAYERS = keras.layers
WORDS = np.array([["a b"], ["b c"], ["z"]], object)
Case = tuple[Any, Callable[[], None], Any]


def normalization_within() -> Case:
    class Scaling(LAYERS.Layer):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.parts = {"norm": LAYERS.Normalization()}
            self.parts["norm"].adapt(X)

        def call(self, x: Any) -> Any:
            return self.parts["norm"](x)

    layer = Scaling()
    inner = keras.Sequential([keras.Input((4,)), layer])
    model = keras.Sequential([keras.Input((4,)), inner, LAYERS.Dense(2)])
    return model, lambda: layer.parts["norm"].adapt(X * 3 + 1), X


def text_vectorization() -> Case:
    layer = LAYERS.TextVectorization(output_mode="tf_idf")
    layer.adapt(["a b", "b c", "c"])
    x = keras.Input((1,), dtype="string")
    return keras.Model(x, layer(x)), lambda: layer.adapt(["a b c", "a", "a"]), WORDS


class Module(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offset = tf.constant(2.0)
        self.scale = np.ones(4, np.float32)
        self.bounds = [0.0, 0.5]
        self.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1, 2], [1.0, 2.0, 3.0]), 0.0)
        self.filled = tf.lookup.experimental.MutableHashTable(tf.int32, tf.float32, 0.0)
        self.filled.insert([0], [1.0])
        self.noted: Any = None

    @tf.function(input_signature=[tf.TensorSpec([None, 4], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        bucket = tf.raw_ops.Bucketize(input=x, boundaries=self.bounds)
        return x * self.scale + self.offset + self.table.lookup(bucket) + self.filled.lookup(bucket)


def module(change: Callable[[Module], None]) -> Callable[[], Case]:
    def make() -> Case:
        made = Module()
        return made, lambda: change(made), X

    return make


def with_another_table(made: Module) -> None:
    made.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], [5.0, 6.0]), 9.0)


def with_others_in_its_array(made: Module) -> None:
    made.scale[1] = 3.0


def changing(change: Callable[[keras.Sequential], None]) -> Callable[[], Case]:
    def make() -> Case:
        made = network()
        return made, lambda: change(made), X

    return make


CASES: dict[str, Callable[[], Case]] = {
    "LoRA in a model in a model": changing(with_lora_within),
    "a layer without variables": changing(lambda made: made.add(keras.layers.ReLU())),
    "a layer less": changing(lambda made: made.pop()),
    "Normalization in a layer in a model": normalization_within,
    "TextVectorization": text_vectorization,
    "a constant": module(lambda made: setattr(made, "offset", tf.constant(3.0))),
    "an array": module(with_others_in_its_array),
    "a list": module(lambda made: made.bounds.append(0.7)),
    "a table": module(with_another_table),
    "a table that was filled": module(lambda made: made.filled.insert([0, 1], [2.0, 7.0])),
}


def now(model: Any, inputs: Any) -> Any:
    """What its code says, whatever was traced before."""
    call = model.__call__.python_function if isinstance(model, Module) else model
    return np.asarray(call(tf.constant(inputs)))


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_what_is_kept_is_published_as_it_is(tmp_path: Path, make: Callable[[], Case]) -> None:
    model, change, inputs = make()
    with Publisher(tmp_path, model, schedule=EVERY_STEP) as publisher:
        first = publisher.publish(1, wait=True)
        before = answer(tmp_path, inputs)
        np.testing.assert_allclose(before, now(model, inputs), rtol=1e-6)
        change()
        second, third = (publisher.publish(step, wait=True) for step in (2, 3))
        assert first.graph != second.graph == third.graph
        np.testing.assert_allclose(answer(tmp_path, inputs), now(model, inputs), rtol=1e-6)
        assert not np.array_equal(before, now(model, inputs))


def test_what_makes_no_difference_is_captured_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    made = Module()
    with Publisher(tmp_path, made, schedule=EVERY_STEP) as publisher:
        versions: list[Version] = []
        for step in range(4):
            made.noted = tf.constant(float(step))
            versions.append(publisher.publish(step, wait=True))
        assert len({version.graph for version in versions}) == 1
        assert len([record for record in caplog.records if "module.noted makes no difference" in record.message]) == 1
        made.offset = tf.constant(7.0)
        assert publisher.publish(5, wait=True).graph != versions[0].graph
        np.testing.assert_allclose(answer(tmp_path, X), now(made, X), rtol=1e-6)
