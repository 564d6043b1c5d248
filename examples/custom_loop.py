"""Train with a loop of your own while an inferencer of STORE serves it: `python examples/custom_loop.py STORE`."""

import sys

import keras
import tensorflow as tf

from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule

model = keras.Sequential(
    [
        keras.Input((8,), name="x"),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(1, name="sum"),
    ]
)
optimizer = keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)


@tf.function(jit_compile=True)
def train_step(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - tf.reduce_sum(x, axis=1, keepdims=True)))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


with Publisher(sys.argv[1], model, schedule=PublishSchedule(every_steps=100)) as publisher:
    for step in range(1, 501):
        loss = train_step(tf.random.uniform((64, 8), -1.0, 1.0))
        publisher.publish_if_due(step, {"loss": loss})
