"""Graphs that pass every check, but do harm when they are called: some with any input, some only if it is not zero."""

from __future__ import annotations

import tensorflow as tf

from tests.support.published import Witness

_SPEC = [tf.TensorSpec([None, 2], tf.float32, name="x")]
_MORE_THAN_FIT = 2_000_000_000  # elements of a list; TensorFlow does not check whether there is room for so many


def _answer(module: Witness, harm: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"seen": tf.stack([part[0, 0] for part in module.parts]), "harm": harm}


def _reserved(count: tf.Tensor) -> tf.Tensor:
    shape = tf.constant([1], tf.int32)
    made = tf.raw_ops.TensorListReserve(element_shape=shape, num_elements=count, element_dtype=tf.float32)
    return tf.raw_ops.TensorListLength(input_handle=made)


class Endless(Witness):
    """Never comes to an end."""

    @tf.function(input_signature=_SPEC)
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        zero = tf.reduce_sum(x) * 0.0
        return _answer(self, tf.while_loop(lambda at: at >= 0.0, lambda at: [tf.abs(at) + 1.0], [zero])[0])


class Killing(Witness):
    """Ends the process that calls it."""

    @tf.function(input_signature=_SPEC)
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return _answer(self, _reserved(_MORE_THAN_FIT + tf.cast(tf.reduce_sum(x) * 0.0, tf.int32)))


class Greedy(Witness):
    """Allocates 100 GB."""

    @tf.function(input_signature=_SPEC)
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        count = 25_000_000_000 + tf.cast(tf.reduce_sum(x) * 0.0, tf.int64)
        return _answer(self, tf.reduce_sum(tf.fill([count], x[0, 0])))


class KillingLater(Witness):
    """Ends the process that calls it, unless the input is zeros."""

    @tf.function(input_signature=_SPEC)
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        count = tf.cast(tf.reduce_sum(tf.abs(x)) > 0.0, tf.int32) * _MORE_THAN_FIT
        return _answer(self, _reserved(count))
