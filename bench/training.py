"""A training loop whose steps are timed, alone or while parameters are saved, and several ways to save them."""

from __future__ import annotations

import abc
import contextlib
import math
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from bench.arrays import Array
from bench.model import KEEP, WARM_UPS
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import Moment, PublishSchedule

SCHEDULE = PublishSchedule(every_seconds=1, at_start=False, at_end=False)
MANUAL = PublishSchedule(every_seconds=1e9, at_start=False, at_end=False)

_BATCH = 16
_RATE = 1e-3
_PEERS_KEEP = 2  # how many saved versions peers keep


@dataclass(frozen=True, slots=True)
class Window:
    """A period of training: the number of steps, the seconds, and for how many seconds each save blocked training."""

    steps: int
    seconds: float
    stalls: list[float] = field(default_factory=list)

    @property
    def step_ms(self) -> float:
        return self.seconds / self.steps * 1000


class Training:
    """A dense model of about `size` bytes, trained by plain gradient descent. Kernels and biases are `variables`."""

    def __init__(self, size: int, variables: int) -> None:
        layers = variables // 2
        width = max(1, round((math.sqrt(1 + size / layers) - 1) / 2))  # 4 * (width * width + width) bytes a layer
        dense = [keras.layers.Dense(width, "relu", kernel_initializer="he_normal") for _ in range(layers)]
        self.model = keras.Sequential([keras.Input((width,), name="x"), *dense])
        self.variables: list[tf.Variable] = [weight.value for weight in self.model.trainable_variables]
        self.steps = 0
        self._x = tf.random.stateless_normal([_BATCH, width], seed=(0, 0))
        self._train = tf.function(self._descend)
        self._rate = _RATE
        for _ in range(4):
            self.step()

    def values(self) -> list[Array]:
        """Return the variables' buffers, or copies if they are on a GPU."""
        return [np.asarray(variable.value()) for variable in self.variables]

    def step(self) -> None:
        """Train for one step. Every second step undoes the previous one, so that no value vanishes over many steps."""
        self._rate = -self._rate
        self._train(tf.constant(self._rate)).numpy()
        self.steps += 1

    def window(self, *, seconds: float, saving: Saving | None = None) -> Window:
        """Train for `seconds`, and for at least one step."""
        stalls: list[float] = []
        steps, apart = 0, 0.0
        started = time.perf_counter()
        while not steps or time.perf_counter() - started - apart < seconds:
            self.step()
            steps += 1
            if saving is not None:
                before = time.perf_counter()
                saving.tidy(self.steps)
                apart += time.perf_counter() - before
                if (stall := saving.offer(self.steps)) is not None:
                    stalls.append(stall)
        return Window(steps, time.perf_counter() - started - apart, stalls)

    def _descend(self, rate: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(self._x, training=True) ** 2)
        for variable, gradient in zip(self.variables, tape.gradient(loss, self.variables), strict=True):
            variable.assign_sub(rate * gradient)
        return loss


class Saving(abc.ABC):
    """One way to save the trained parameters once a second. The training thread calls it."""

    def tidy(self, step: int) -> None:  # noqa: B027, a Publisher tidies by itself
        """Make room for the next save. The time for this does not count."""

    @abc.abstractmethod
    def offer(self, step: int) -> float | None:
        """Save if a save is due. Returns the seconds that it took this thread; None if nothing was saved."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Wait until no save is in progress."""

    @abc.abstractmethod
    def close(self) -> None: ...


class Ours(Saving):
    """`Publisher.publish_if_due`, into a store whose files are recycled, or into the bucket at `address`."""

    def __init__(self, training: Training, folder: Path, address: str | None = None) -> None:
        self._publisher = Publisher(address or folder, training.model, schedule=SCHEDULE, keep=KEEP, on_error="raise")
        for _ in range(WARM_UPS):
            training.step()
            self._publisher.publish(training.steps, wait=True)

    def offer(self, step: int) -> float | None:
        started = time.perf_counter()
        version = self._publisher.publish_if_due(step)
        return None if version is None else time.perf_counter() - started

    def wait(self) -> None:
        self._publisher.flush()

    def close(self) -> None:
        self._publisher.close()


class CheckpointSave(Saving):
    """`tf.train.Checkpoint.save`, each time into a new folder; old folders are removed."""

    options: tf.train.CheckpointOptions | None = None

    def __init__(self, training: Training, folder: Path) -> None:
        variables = tf.Module()  # the asynchronous checkpoint copies its model; TensorFlow cannot copy a Keras model
        variables.parts = training.variables
        self._checkpoint = tf.train.Checkpoint(model=variables)
        self._folder = folder
        self._since = Moment(training.steps, time.monotonic())
        self._saved: list[Path] = []
        self._next: Path | None = None

    def tidy(self, step: int) -> None:
        now = time.monotonic()
        if not SCHEDULE.due(step, now, since=self._since):
            return
        self._since = Moment(step, now)
        self._next = self._folder / str(step)
        self._next.mkdir(parents=True)
        self._saved.append(self._next)
        while len(self._saved) > _PEERS_KEEP + 1:
            shutil.rmtree(self._saved.pop(0), ignore_errors=True)

    def offer(self, step: int) -> float | None:
        path, self._next = self._next, None
        if path is None:
            return None
        started = time.perf_counter()
        self._checkpoint.save(str(path / "ckpt"), self.options)
        return time.perf_counter() - started

    def wait(self) -> None:
        self._checkpoint.sync()

    def close(self) -> None:
        with contextlib.suppress(Exception):  # a save that failed raises again
            self.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class AsyncCheckpoint(CheckpointSave):
    """CheckpointSave with TensorFlow's asynchronous checkpoints."""

    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)


PEERS: dict[str, type[CheckpointSave]] = {"checkpoint_save": CheckpointSave, "async_checkpoint": AsyncCheckpoint}
