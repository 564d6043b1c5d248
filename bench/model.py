"""A model with the parameters that are measured, as a trainer has it: variables that training changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bench.arrays import Array

STEP = 1e-3  # what training adds to every value


class Model(tf.Module):
    """Variables behind a function."""

    def __init__(self, values: Sequence[Array]) -> None:
        super().__init__()
        self.parts = [tf.Variable(value) for value in values]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * tf.add_n([part[0, 0] for part in self.parts])}

    def values(self) -> list[Array]:
        """The variables' buffers, not copies of them; to be let go before the next step."""
        return [np.asarray(part.value()) for part in self.parts]


class _Layer(keras.layers.Layer):
    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self._shapes = shapes

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.parts = [self.add_weight(shape=shape, initializer="zeros", name="part") for shape in self._shapes]
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        return inputs * sum(part[0, 0] for part in self.parts)


class Subject:
    """What is saved and loaded: the same parameters as a tf.Module and, where a peer asks for it, as a Keras model."""

    def __init__(self, values: Sequence[Array], *, frozen: int = 0) -> None:
        """Training leaves so many of the parameters alone, the first ones."""
        self.module = Model(values)
        self.frozen = frozen

    @cached_property
    def keras(self) -> keras.Model:
        values = self.module.values()
        model = keras.Sequential([keras.Input((1,)), _Layer([value.shape for value in values])])
        model.set_weights(values)
        return model

    def train(self) -> None:
        """Change every value that is not frozen."""
        weights = [weight.value for weight in self.keras.weights] if "keras" in vars(self) else []
        for variable in (*self.module.parts[self.frozen :], *weights[self.frozen :]):
            variable.assign_add(tf.fill(variable.shape, STEP))
