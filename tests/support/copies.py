"""Layers of v1 graphs to be copied, and sessions that compute their copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.graphs.surgery import Copy

v1 = tf.compat.v1

DATA = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)


def dense(tensor: tf.Tensor, units: int, name: str, *, resource: bool = True, **arguments: Any) -> tf.Tensor:
    with v1.variable_scope(name, use_resource=resource):
        kernel = v1.get_variable("kernel", [tensor.shape[-1], units], **arguments)
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
        return tf.nn.relu(tf.matmul(tensor, kernel) + bias)


def ready(graph: tf.Graph) -> Any:
    with graph.as_default():
        session = v1.Session(graph=graph)
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
    return session


def copy_values(session: Any, copy: Copy) -> None:
    with copy.graph.as_default():
        session.run([v1.assign(one, copy.originals[name].read_value()) for name, one in copy.variables.items()])
