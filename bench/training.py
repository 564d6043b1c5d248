"""A training loop whose steps are timed, alone or while somebody saves its parameters: dense layers, plain descent."""

from __future__ import annotations

import abc
import math
import time
from dataclasses import dataclass, field

import keras
import numpy as np
import tensorflow as tf

from bench.arrays import Array

_BATCH = 16
_RATE = 1e-3


class Saving(abc.ABC):
    """One way to save what is trained, at a pace of its own, on the thread that trains."""

    @abc.abstractmethod
    def offer(self, step: int) -> float | None:
        """Save where it is time to. Returns the seconds that it took this thread; None where nothing was saved."""

    def tidy(self, step: int) -> None:  # noqa: B027, most have nothing to tidy
        """Make room for what `offer` is about to save; not timed."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Until nothing is being saved any more."""

    @abc.abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of training: the steps, how long it took, and for how long each save held it up. Seconds."""

    steps: int
    seconds: float
    stalls: list[float] = field(default_factory=list)

    @property
    def step_ms(self) -> float:
        return self.seconds / self.steps * 1000


class Training:
    """A model of so many bytes in so many variables, half of them kernels and half biases, and its training."""

    def __init__(self, size: int, variables: int) -> None:
        layers = variables // 2
        width = max(1, round((math.sqrt(1 + size / layers) - 1) / 2))  # 4 * (width * width + width) bytes a layer
        dense = [keras.layers.Dense(width, "relu", kernel_initializer="he_normal") for _ in range(layers)]
        self.model = keras.Sequential([keras.Input((width,), name="x"), *dense])
        self.variables: list[tf.Variable] = [one.value for one in self.model.trainable_variables]
        self.steps = 0
        self._x = tf.random.stateless_normal([_BATCH, width], seed=(0, 0))
        self._train = tf.function(self._descend)
        self._rate = _RATE
        for _ in range(4):
            self.step()

    def values(self) -> list[Array]:
        """The variables' buffers or, from a GPU, copies of them."""
        return [np.asarray(one.value()) for one in self.variables]

    def step(self) -> None:
        """One step. Every other goes back to where it came from, so that no value vanishes, however many there are."""
        self._rate = -self._rate
        self._train(tf.constant(self._rate)).numpy()
        self.steps += 1

    def window(self, *, seconds: float, steps: int, saving: Saving | None = None) -> Window:
        """Train for so long and so many steps, whichever is more."""
        stalls: list[float] = []
        done, apart = 0, 0.0
        started = time.perf_counter()
        while done < steps or time.perf_counter() - started - apart < seconds:
            self.step()
            done += 1
            if saving is not None:
                before = time.perf_counter()
                saving.tidy(self.steps)
                apart += time.perf_counter() - before
                if (held := saving.offer(self.steps)) is not None:
                    stalls.append(held)
        return Window(done, time.perf_counter() - started - apart, stalls)

    def _descend(self, rate: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(self._x, training=True) ** 2)
        for variable, gradient in zip(self.variables, tape.gradient(loss, self.variables), strict=True):
            variable.assign_sub(rate * gradient)
        return loss
