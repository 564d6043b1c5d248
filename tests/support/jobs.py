"""A small job for the training program, as the text of a module."""

from __future__ import annotations

from pathlib import Path

SMALL = """
import keras
import tensorflow as tf

from paramsync.publishing.job import Job, JobSettings

FIRST = tf.constant(1.0)  # TensorFlow computes while this is imported


def small(settings: JobSettings) -> Job:
    keras.utils.set_random_seed(settings.seed)
    model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(3), keras.layers.Dense(1, name="y")])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    step = tf.Variable(0, dtype=tf.int64, trainable=False)
    wanted = float(settings.data.read_text()) if settings.data else 7.0

    @tf.function
    def train_step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(tf.ones([8, 4])) - wanted))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        step.assign_add(FIRST_STEP)
        return loss

    return Job(model=model, step=step, train_step=train_step, state={"optimizer": optimizer})


FIRST_STEP = 1
"""


def put(folder: Path, content: str = SMALL, *, name: str = "small_job") -> None:
    """Write the module into the folder."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(content)
