"""A model for tests of publishers, schedules, and the latest version of a store."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.store import Store
from paramsync.version import Version

TIMEOUT = 60
EVERY_STEP = PublishSchedule(every_steps=1)
ON_REQUEST = PublishSchedule(at_start=False, at_end=False)


class Counters(tf.Module):
    """Variables that all equal the number of steps taken."""

    def __init__(self) -> None:
        super().__init__()
        self.many = [tf.Variable(tf.zeros([size, 257])) for size in (1, 2, 64, 512)]
        self.step = tf.Variable(0, dtype=tf.int64)
        self.more: list[tf.Variable] = []

    @tf.function(input_signature=[tf.TensorSpec([], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x + tf.add_n([tf.reduce_sum(one) for one in self.many]) + tf.cast(self.step, tf.float32)

    @tf.function
    def train(self) -> None:
        for one in self.many:
            one.assign_add(tf.ones_like(one))
        self.step.assign_add(1)


def latest(store: Path) -> Version:
    found = Store(store).latest()
    assert found is not None
    return found
