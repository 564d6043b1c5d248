"""The subject of the benchmarks: parameters in variables, as in a trainer, and a store to which they are published."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bench.arrays import Array
from paramsync.graphs.capturing import Capture
from paramsync.publishing.live_variables import LiveVariables
from paramsync.store.commit import StoreWriter
from paramsync.version import Version

STEP = 1e-3  # what training adds to every value
KEEP = 2  # versions listed in a store; from KEEP + 2 publications on, its files are recycled
WARM_UPS = KEEP + 3


class Model(tf.Module):
    """A model with one function, which reads one number of each variable."""

    def __init__(self, values: Sequence[Array]) -> None:
        super().__init__()
        self.parts = [tf.Variable(value) for value in values]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * tf.add_n([part[0, 0] for part in self.parts])}

    def values(self) -> list[Array]:
        """Return the variables' buffers, without a copy. If they are not freed, the next step has to copy them."""
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
    """The same parameters as a tf.Module and, for peers that need it, as a Keras model."""

    def __init__(self, values: Sequence[Array], *, frozen: int = 0) -> None:
        """Training does not change the first `frozen` parameters."""
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


class Publications:
    """A store and its writer. Commits versions as a trainer's publisher does."""

    def __init__(self, path: Path, captured: Capture, *, signing_key: Path | None = None) -> None:
        self._writer = StoreWriter(path, keep=KEEP, signing_key=signing_key)
        self._graph = captured.graph.digest
        self._writer.add_graph(self._graph, captured.graph.to_bytes())

    def publish(self, tensors: Mapping[str, Array], *, step: int = 0, finite: bool = False) -> Version:
        now = time.time()
        number = self._writer.next_number(step)
        version = Version(
            number=number, step=number, prefix=f"ckpt-{number}", graph=self._graph, step_done_at=now, snapshot_at=now
        )
        return self._writer.commit(version, tensors, finite=finite)

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> Publications:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def pin(live: LiveVariables) -> Mapping[str, Array]:
    """Return the values of this step in the form in which a trainer's publisher gives them to the store."""
    return {name: np.asarray(value) for name, value in live.pin().items()}
