"""Models to capture, and the answers of their captured graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paramsync.checkpoint.reader import Bundle
from paramsync.graphs.capturing import Capture
from paramsync.graphs.draft import finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.meta_graphs import capture_meta
from paramsync.graphs.sources.saved_models import SavedModel
from paramsync.graphs.specs import DEFAULT_SIGNATURE

v1 = tf.compat.v1
ONES = np.ones((1, 4), np.float32)


def mlp(activation: str = "relu") -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8,), name="image"),
            keras.layers.Dense(6, activation=activation),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, name="logits"),
        ]
    )


class Scaler(tf.Module):
    """A module whose variable is read inside a nested function."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable([2.0, 3.0])
        self.table = tf.Variable(tf.reshape(tf.range(12.0), (6, 2)))
        self.offset = tf.constant([10.0, 20.0])
        self.inner = tf.function(lambda rows: tf.gather(self.table, rows) * self.scale)

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.int32)])
    def __call__(self, rows: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"scaled": self.inner(rows) + self.offset, "shape": tf.shape(self.table)}


class Encoder(tf.Module):
    """Two functions over two variables: `score` reads both, `encode` only one."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = tf.Variable(tf.random.normal((4, 3)), name="weights")
        self.scale = tf.Variable(2.0, name="scale")

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    def encode(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"code": x @ self.weights}

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="given")])
    def score(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(self.encode(x)["code"], 1) * self.scale


def answers(captured: Capture, inputs: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the answers of the graph after it was written to a file and read again."""
    graph = Graph.from_bytes(captured.graph.to_bytes())
    values = [variable.read_value() for variable in captured.variables]
    return {name: value.numpy() for name, value in graph(values, inputs).items()}


def saved_parameters(directory: Path, graph: Graph) -> list[tf.Tensor]:
    bundle = Bundle.open(directory / "variables" / "variables")
    return [tf.constant(bundle.array(one.name)) for one in graph.parameters]


# TensorFlow 1


def meta_graph(path: Path, *, inputs: Any, outputs: Any, allowed: Sequence[str] = ()) -> Graph:
    return capture_meta(path.read_bytes(), path=path, inputs=inputs, outputs=outputs, allowed=allowed)


def names(graph: Graph) -> list[str]:
    return [spec.name for spec in graph.parameters]


def answer(graph: Graph, prefix: Path, inputs: Mapping[str, Any], signature: str = DEFAULT_SIGNATURE) -> dict[str, Any]:
    bundle = Bundle.open(prefix)
    values = [tf.constant(bundle.array(name)) for name in names(graph)]
    given = {name: tf.constant(value) for name, value in inputs.items()}
    return {name: one.numpy() for name, one in graph(values, given, signature=signature).items()}


def two_layers() -> tuple[tf.Tensor, tf.Tensor]:
    x = v1.placeholder(tf.float32, (None, 4), name="x")
    return x, tf.nn.relu(tf.matmul(x, v1.get_variable("w", (4, 2))), name="y")


def saved_graph(directory: Path, **more: Any) -> Graph:
    return finish(SavedModel(directory).draft(**more))
