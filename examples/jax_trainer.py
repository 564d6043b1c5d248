"""Train with Keras on JAX while an inferencer of STORE serves the same model with TensorFlow.

    paramsync graph publish examples.jax_trainer:build STORE
    KERAS_BACKEND=jax python -m examples.jax_trainer STORE

The trainer imports no TensorFlow: the first command does, once, to put the graph into the store.
"""

import sys

import keras
import numpy as np

from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule

STEPS = 300


def build() -> keras.Model:
    """The model; variables have the same paths on every backend."""
    return keras.Sequential(
        [
            keras.Input((8,), name="x"),
            keras.layers.Dense(32, activation="relu", name="hidden"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(1, activation="sigmoid", name="probability"),
        ],
        name="signs",
    )


def main(store: str) -> keras.Model:
    random = np.random.default_rng(0)
    model = build()
    model.compile("adam", "binary_crossentropy")
    with Publisher.of_graph(store, schedule=PublishSchedule(every_steps=50)) as publisher:
        for step in range(1, STEPS + 1):
            x = random.uniform(-1, 1, (64, 8)).astype(np.float32)
            loss = model.train_on_batch(x, x.sum(axis=1, keepdims=True) > 0)
            values = {variable.path: variable.value for variable in model.variables}
            publisher.publish_if_due(step, {"loss": loss}, values=values)
    return model


if __name__ == "__main__":
    main(sys.argv[1])
