"""Trains on two replicas and publishes: `python -m tests.support.mirrored WHAT STORE`; prints a JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule

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


def loop(store: Path, strategy: Any) -> dict[str, Any]:
    """Return the values that each version has, by its step."""
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
            if step % 50 == 0:
                assert publisher.flush(60)  # so that some versions come also where the machine is busy
        publisher.finish(STEPS)
    return {"seen": seen}


class Statistics(tf.Module):
    """Variables that each replica counts on its own; a read aggregates them."""

    def __init__(self, *aggregations: tf.VariableAggregation) -> None:
        super().__init__()
        self.shared = tf.Variable(tf.ones([3]), name="shared")
        self.own = [
            tf.Variable(
                tf.zeros([3]), False, synchronization=tf.VariableSynchronization.ON_READ, aggregation=one, name=one.name
            )
            for one in aggregations
        ]

    @tf.function(input_signature=[tf.TensorSpec([None, 4], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x) * self.shared + tf.add_n([one + one.read_value() for one in self.own])


def on_read(store: Path, strategy: Any) -> dict[str, Any]:
    """After the last step: the values as read, by key; the model's answer; the error for a SUM variable."""
    with strategy.scope():
        model = Statistics(tf.VariableAggregation.MEAN, tf.VariableAggregation.ONLY_FIRST_REPLICA)
        added_up = Statistics(tf.VariableAggregation.SUM)

    def replica() -> None:
        context = tf.distribute.get_replica_context()
        for variable in model.own:  # 1, 2 on the first, 10, 20 on the second
            variable.assign_add([1.0, 2.0, 0.1] if context.replica_id_in_sync_group == 0 else [10.0, 20.0, 0.2])

    step = tf.function(lambda: strategy.run(replica))
    with Publisher(store, model, schedule=PublishSchedule(every_steps=1), on_error="raise") as publisher:
        for number in range(1, 4):
            step()
            publisher.publish_if_due(number)
    try:
        Publisher(store / "other", added_up, schedule=PublishSchedule(every_steps=1))
    except GraphError as error:
        refused = str(error)
    values = {f"own/{at}/.ATTRIBUTES/VARIABLE_VALUE": one.read_value() for at, one in enumerate(model.own)}
    return {
        "values": {key: value.numpy().tolist() for key, value in values.items()},
        "answer": model(tf.constant(X[:32])).numpy().tolist(),
        "refused": refused,
    }


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
    sys.stdout.write(json.dumps({"loop": loop, "on_read": on_read}[what](Path(store), strategy)))


if __name__ == "__main__":
    main(*sys.argv[1:])
