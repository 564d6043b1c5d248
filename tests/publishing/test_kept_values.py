"""What layers and modules keep beside their variables is published as it is: what `adapt` learns, tables, constants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import PublishError
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.graphs.capturing import capture
from paramsync.publishing.publisher import Publisher
from paramsync.version import Version
from tests.support.training import EVERY_STEP

LAYERS = keras.layers
NUMBERS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
WORDS = np.array([["a b"], ["b c"], ["z"]], object)
Case = tuple[Any, Callable[[], None], Any]


def answer(store: Path, inputs: Any) -> Any:
    follower = Follower(Replica("m", store))
    follower.run_once()
    (name,) = follower.replica.serving().graph.signatures["serving_default"].inputs
    outputs, _ = follower.replica.predict({name: inputs})
    (found,) = outputs.values()
    return found


def normalization() -> Case:
    layer = LAYERS.Normalization()
    layer.adapt(NUMBERS)
    model = keras.Sequential([keras.Input((4,)), layer, LAYERS.Dense(2)])
    return model, lambda: layer.adapt(NUMBERS * 3 + 1), NUMBERS


def normalization_within() -> Case:
    class Scaling(LAYERS.Layer):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.parts = {"norm": LAYERS.Normalization()}
            self.parts["norm"].adapt(NUMBERS)

        def call(self, x: Any) -> Any:
            return self.parts["norm"](x)

    layer = Scaling()
    inner = keras.Sequential([keras.Input((4,)), layer])
    model = keras.Sequential([keras.Input((4,)), inner, LAYERS.Dense(2)])
    return model, lambda: layer.parts["norm"].adapt(NUMBERS * 3 + 1), NUMBERS


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
        return made, lambda: change(made), NUMBERS

    return make


def with_another_table(made: Module) -> None:
    made.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], [5.0, 6.0]), 9.0)


def with_others_in_its_array(made: Module) -> None:
    made.scale[1] = 3.0


CASES: dict[str, Callable[[], Case]] = {
    "Normalization": normalization,
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
        np.testing.assert_allclose(answer(tmp_path, NUMBERS), now(made, NUMBERS), rtol=1e-6)


def test_what_could_not_be_captured_is_not_published_when_something_else_changes(tmp_path: Path) -> None:
    made = Module()
    concrete = made.__call__.get_concrete_function()
    with Publisher(tmp_path, capture(concrete, root=made), schedule=EVERY_STEP) as publisher:
        publisher.publish(1, wait=True)
        made.more = tf.Variable(1.0)
        for step in (2, 3):
            with pytest.raises(PublishError, match="ConcreteFunction"):
                publisher.publish(step, wait=True)
            made.noted = tf.constant(float(step))
