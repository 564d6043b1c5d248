"""Trains on two replicas and publishes as it goes: `python -m tests.mirrored fit|loop STORE`; prints what there was."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.keras import PublishCallback
from trainer.publisher import Publisher
from trainer.schedule import PublishSchedule

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
STEPS = 400


class Counters(tf.Module):
    """Variables that all equal the number of steps taken."""

    def __init__(self) -> None:
        super().__init__()
        self.many = [tf.Variable(tf.zeros([size, 257]), name=f"many_{size}") for size in (1, 2, 64, 512)]

    @tf.function(input_signature=[tf.TensorSpec([], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x + tf.add_n([tf.reduce_sum(one) for one in self.many])


def network() -> keras.Model:
    layers = [keras.Input((4,), name="x"), keras.layers.Dense(3), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def fit(store: Path, strategy: Any) -> dict[str, Any]:
    """The weights after the last step."""
    with strategy.scope():
        model = network()
    callback = PublishCallback(store, every_steps=2, on_error="raise")
    model.fit(X, X.sum(axis=1, keepdims=True), epochs=2, batch_size=16, verbose=0, callbacks=[callback])
    return {"weights": [weight.numpy().tolist() for weight in model.weights]}


def loop(store: Path, strategy: Any) -> dict[str, Any]:
    """The values that each version has, by its step."""
    with strategy.scope():
        model = Counters()
        train = _step(strategy, model)
    seen: dict[int, list[float]] = {}
    with Publisher(store, model, schedule=PublishSchedule(every_steps=1), on_error="raise") as publisher:

        def look(version: Any) -> None:
            reader = tf.train.load_checkpoint(str(store / version.prefix))
            names = [name for name in reader.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")]
            assert len(names) == len(model.many)
            seen[version.step] = sorted({float(one) for name in names for one in np.unique(reader.get_tensor(name))})

        publisher.subscribe(look)
        for step in range(1, STEPS + 1):
            train()
            publisher.publish_if_due(step)
        publisher.finish(STEPS)
    return {"seen": seen}


def _step(strategy: Any, model: Counters) -> Callable[[], object]:
    def replica() -> None:
        context = tf.distribute.get_replica_context()
        number = tf.cast(context.replica_id_in_sync_group, tf.float32)
        one_each = context.all_reduce(tf.distribute.ReduceOp.SUM, number)  # 0 of the first, 1 of the second
        for variable in model.many:
            context.merge_call(_add, args=(variable, one_each))

    step: Callable[[], object] = tf.function(lambda: strategy.run(replica))
    return step


def _add(strategy: Any, variable: Any, share: Any) -> None:
    def add(one: Any, value: tf.Tensor) -> None:
        one.assign_add(tf.ones_like(one) * value)

    strategy.extended.update(variable, add, args=(share,))


def main(what: str, store: str) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    sys.stdout.write(json.dumps({"fit": fit, "loop": loop}[what](Path(store), strategy)))


if __name__ == "__main__":
    main(*sys.argv[1:])
