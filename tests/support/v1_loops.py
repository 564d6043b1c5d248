"""Networks with loops as scripts of TensorFlow 1 have them, whose output needs but a part of what the loops give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

Build = Callable[[tf.Tensor], tf.Tensor]
"""From a batch of sequences, [rows, 5, 4], to an output."""


class LstmCell:
    """What a script of the time took from tf.nn.rnn_cell, which Keras 3 no longer gives."""

    state_size = (3, 3)
    output_size = 3

    def zero_state(self, rows: Any, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.zeros([rows, 3], dtype), tf.zeros([rows, 3], dtype)

    def __call__(self, inputs: tf.Tensor, state: Any, scope: str | None = None) -> tuple[tf.Tensor, Any]:
        kernel = v1.get_variable("kernel", [inputs.shape[-1] + 3, 12])
        bias = v1.get_variable("bias", [12])
        memory, hidden = state
        gates = tf.concat([inputs, hidden], 1) @ kernel + bias
        into, new, forget, out = tf.split(gates, 4, axis=1)
        memory = memory * tf.sigmoid(forget + 1.0) + tf.sigmoid(into) * tf.tanh(new)
        hidden = tf.tanh(memory) * tf.sigmoid(out)
        return hidden, (memory, hidden)


def _weights(name: str = "weights", rows: int = 4) -> tf.Variable:
    return v1.get_variable(name, [rows, 4])


def last_outputs(x: tf.Tensor) -> tf.Tensor:
    outputs, _ = v1.nn.dynamic_rnn(LstmCell(), x, dtype=tf.float32)
    return outputs[:, -1] @ _weights("head", 3)


def accumulator(x: tf.Tensor) -> tf.Tensor:
    weights = _weights()

    def body(step: tf.Tensor, state: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        state = tf.tanh(state @ weights)
        return step + 1, state, total + state * x[:, step]

    return tf.while_loop(lambda step, *_: step < 5, body, [0, x[:, 0], tf.zeros_like(x[:, 0])])[2]


def nested(x: tf.Tensor) -> tf.Tensor:
    weights = _weights()

    def inner(step: tf.Tensor, state: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        state = tf.tanh(state @ weights)
        return step + 1, state, total + state

    def outer(step: tf.Tensor, state: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        _, _, found = tf.while_loop(lambda at, *_: at < 2, inner, [0, state, tf.zeros_like(state)])
        return step + 1, found, total + found

    return tf.while_loop(lambda step, *_: step < 3, outer, [0, x[:, 0], tf.zeros_like(x[:, 0])])[2]


def branches(x: tf.Tensor) -> tf.Tensor:
    weights = _weights()

    def body(step: tf.Tensor, state: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        state = tf.cond(tf.equal(step % 2, 0), lambda: tf.tanh(state @ weights), lambda: state * 0.5)
        return step + 1, state, tf.cond(step > 1, lambda: total + state, lambda: total)

    return tf.while_loop(lambda step, *_: step < 5, body, [0, x[:, 0], tf.zeros_like(x[:, 0])])[2]


def loop_in_branch(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.reduce_sum(x) > 1e9, lambda: x[:, 0], lambda: accumulator(x))


LOOPS: dict[str, Build] = {
    one.__name__.strip("_"): one
    for one in (
        last_outputs,
        accumulator,
        nested,
        branches,
        loop_in_branch,
    )
}
