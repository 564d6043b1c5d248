"""What is published follows the structure of what is trained: a change is captured anew, or told, never left out."""

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
from tests.support.followers import serving
from tests.support.training import EVERY_STEP, latest

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def network() -> keras.Sequential:
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "tanh")])
    return keras.Sequential([keras.Input((4,), name="x"), inner, keras.layers.Dense(3), keras.layers.Dense(2)])


def answer(store: Path) -> Any:
    follower = Follower(Replica("m", store))
    follower.run_once()
    outputs, version = follower.replica.predict({"x": X})
    assert version.number == latest(store).number == serving(follower)
    (found,) = outputs.values()
    return found


def with_lora_within(model: keras.Sequential) -> None:
    model.layers[0].layers[0].enable_lora(2)
    model.layers[0].layers[0].lora_kernel_b.assign(tf.ones_like(model.layers[0].layers[0].lora_kernel_b))


def with_a_layer_without_variables(model: keras.Sequential) -> None:
    model.add(keras.layers.ReLU())


def without_a_layer(model: keras.Sequential) -> None:
    model.pop()


@pytest.mark.parametrize("change", [with_lora_within, with_a_layer_without_variables, without_a_layer])
def test_a_keras_model_that_changes_is_published_as_it_is(
    tmp_path: Path, change: Callable[[keras.Sequential], None]
) -> None:
    model = network()
    with Publisher(tmp_path, model, schedule=EVERY_STEP) as publisher:
        first = publisher.publish(1, wait=True)
        np.testing.assert_allclose(answer(tmp_path), model(X), rtol=1e-6)
        change(model)
        second = publisher.publish(2, wait=True)
        third = publisher.publish(3, wait=True)
        assert first.graph != second.graph == third.graph
        np.testing.assert_allclose(answer(tmp_path), model(X), rtol=1e-6)


class Net(tf.Module):
    """With a layer of Keras, which tf.Module does not look into."""

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
        np.testing.assert_allclose(answer(tmp_path), expected(net), rtol=1e-6)
        net.layer.enable_lora(2)
        net.layer.lora_kernel_b.assign(tf.ones_like(net.layer.lora_kernel_b))
        publisher.publish(3, wait=True)
        np.testing.assert_allclose(answer(tmp_path), expected(net), rtol=1e-6)


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
