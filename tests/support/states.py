"""Jobs of a few parameters, and their training states: saved, restored, compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paramsync.publishing.job import Job
from paramsync.store.commit import StoreWriter
from trainer.state import TrainingState


def job(size: int = 1000) -> Job:
    module = tf.Module()
    module.weights = tf.Variable(tf.zeros([size]))
    step = tf.Variable(0, dtype=tf.int64)

    def train_step() -> tf.Tensor:
        module.weights.assign_add(tf.ones([size]))
        step.assign_add(1)
        return tf.reduce_sum(module.weights)

    return Job(model=module, step=step, train_step=train_step)


def adam_job(seed: int) -> Job:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    step = tf.Variable(0, dtype=tf.int64)

    def train_step() -> tf.Tensor:
        gradients = [tf.random.normal(weight.shape) for weight in model.trainable_variables]
        optimizer.apply(gradients, model.trainable_variables)
        step.assign_add(1)
        return tf.reduce_sum(gradients[0])

    generator = tf.random.Generator.from_seed(seed)
    return Job(model=model, step=step, train_step=train_step, state={"optimizer": optimizer, "random": generator})


@contextmanager
def state_of(directory: Path, one: Job) -> Iterator[TrainingState]:
    with StoreWriter(directory, keep=2) as store, closing(TrainingState(store, directory, one)) as state:
        yield state


def restored(directory: Path, one: Job) -> bool:
    with state_of(directory, one) as state:
        return state.restore()


def saved(directory: Path, *steps: int) -> None:
    one = job()
    with state_of(directory, one) as state:
        for step in range(1, max(steps) + 1):
            one.train_step()
            if step in steps:
                state.finish(step)


def newest(directory: Path, suffix: str) -> Path:
    prefix = tf.train.latest_checkpoint(directory)
    return next(Path(prefix).parent.glob(f"{Path(prefix).name}{suffix}*"))


def content(one: Job) -> dict[str, Any]:
    variables = [*one.model.variables, *one.state["optimizer"].variables, one.state["random"].state, one.step]
    return {f"{position} {variable.name}": np.asarray(variable) for position, variable in enumerate(variables)}
