"""The default job: a 784-256-256-10 network learns to read digits."""

from __future__ import annotations

import keras
import tensorflow as tf

from trainer.job import Job
from trainer.jobs.examples import PIXELS, Examples

BATCH = 32
LEARNING_RATE = 0.03  # small enough that one can watch the digits being learnt


def build(examples: Examples, *, seed: int) -> Job:
    """A job that trains on these examples. Weights and batches follow from the seed, and batches from the step."""
    keras.utils.set_random_seed(seed)
    model = network()
    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images, labels = tf.constant(examples.images), tf.constant(examples.labels)
    step = tf.Variable(0, dtype=tf.int64, trainable=False)

    @tf.function
    def train_step() -> tf.Tensor:
        picked = tf.random.stateless_uniform([BATCH], seed=tf.stack([seed, step]), maxval=len(labels), dtype=tf.int32)
        batch = tf.cast(tf.gather(images, picked), tf.float32) / 255
        with tf.GradientTape() as tape:
            loss = loss_of(tf.gather(labels, picked), model(batch, training=True))
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        step.assign_add(1)
        return loss

    return Job(
        model=model,
        step=step,
        train_step=train_step,
        steps_per_epoch=max(1, len(labels) // BATCH),
        state={"optimizer": optimizer},
    )


def network() -> keras.Model:
    """Pictures in, logits out."""
    return keras.Sequential(
        [
            keras.Input((PIXELS,), name="image"),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(10, name="logits"),
        ]
    )
