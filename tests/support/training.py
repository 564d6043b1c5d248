"""Helpers for tests of publishers: a model, a store with another framework's values, and a follower's answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

from paramsync.following.replica import Replica
from paramsync.graphs.capturing import Capture, capture
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.commit import StoreWriter
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


VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class Affine(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.ones([4]), name="scale_of_all")
        self.shift = tf.Variable(tf.zeros([4], tf.bfloat16), name="shift_of_all")

    @tf.function(input_signature=[tf.TensorSpec([None, 4], name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * self.scale + tf.cast(self.shift, tf.float32)}


def values(number: float = 1.0) -> dict[str, Any]:
    shift = np.full(4, number, ml_dtypes.bfloat16)
    return {"scale_of_all": np.full(4, number, np.float32), "shift_of_all": shift}


def put(store: Path, source: Any) -> Capture:
    captured = capture(source)
    with StoreWriter(store) as writer:
        writer.add_graph(captured.graph.digest, captured.graph.to_bytes())
    return captured


def answer(store: Path) -> list[float]:
    """Return the answer of a follower that serves the newest version."""
    replica = Replica("m", Store(store))
    latest = Store(store).latest()
    assert latest is not None
    replica.swap(replica.restore(latest))
    outputs, _ = replica.predict({"x": np.ones([1, 4], np.float32)})
    found: list[float] = next(iter(outputs.values())).numpy().reshape(-1).tolist()
    return found
