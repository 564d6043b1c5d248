"""Graphs that sessions of TensorFlow 1 train, and what a follower computes of what they published."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.dtypes import Array
from paramsync.following.replica import Replica
from paramsync.store.store import Store
from tests.support.training import latest

v1 = tf.compat.v1

ONES = np.ones((3, 4), np.float32)

kinds = pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])


class Net:
    """A small network and its training step, in the default graph."""

    def __init__(self, *, use_resource: bool = True, partitioner: Any = None) -> None:
        self.step = v1.train.get_or_create_global_step()
        self.x = v1.placeholder_with_default(ONES, [None, 4], name="x")
        with v1.variable_scope("net", use_resource=use_resource, partitioner=partitioner):
            self.kernel = v1.get_variable("kernel", [4, 6])
            self.bias = v1.get_variable("bias", [6], initializer=v1.zeros_initializer())
        self.y = tf.identity(tf.nn.tanh(tf.matmul(self.x, self.kernel) + self.bias), name="y")
        self.loss = tf.reduce_mean(tf.square(self.y - 0.5), name="loss")
        self.train = v1.train.AdamOptimizer(0.05).minimize(self.loss, self.step)


class Counting:
    """Variables that all hold the number of steps taken."""

    def __init__(self, *, use_resource: bool, sparse: bool = False, size: int = 20_000, count: int = 8) -> None:
        self.step = v1.train.get_or_create_global_step()
        self.x = v1.placeholder(tf.float32, [], name="x")
        with v1.variable_scope("counting", use_resource=use_resource, initializer=v1.zeros_initializer()):
            self.many = [v1.get_variable(f"v{at}", [size]) for at in range(count)]
        self.y = self.x + tf.add_n([tf.reduce_sum(one) for one in self.many])
        every = tf.IndexedSlices(tf.ones([size]), tf.range(size))
        added = [one.scatter_add(every) if sparse else one.assign_add(every.values) for one in self.many]
        self.train = tf.group(*added, self.step.assign_add(1))


def answer(store: Path, inputs: Any = ONES) -> Any:
    """What a follower of the store computes."""

    def follow() -> Array:
        (output,) = Replica("net", Store(store)).restore(latest(store)).predict({"x": inputs}).values()
        return np.asarray(output)

    with ThreadPoolExecutor() as elsewhere:  # a thread has its own default graph: none
        return elsewhere.submit(follow).result(60)


def assert_computes(store: Path, expected: Any) -> None:
    """A follower's answer is the session's, but for what a session does to a graph to make it faster."""
    np.testing.assert_allclose(answer(store), expected, rtol=1e-6)
