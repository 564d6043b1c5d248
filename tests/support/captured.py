"""Models to capture, and the answers of their captured graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy.typing as npt
import tensorflow as tf

from paramsync.checkpoint.reader import Bundle
from paramsync.graphs.capturing import Capture
from paramsync.graphs.graph import Graph


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
    """The answers of the graph after it was written to a file and read again."""
    graph = Graph.from_bytes(captured.graph.to_bytes())
    values = [variable.read_value() for variable in captured.variables]
    return {name: value.numpy() for name, value in graph(values, inputs).items()}


def saved_parameters(directory: Path, graph: Graph) -> list[tf.Tensor]:
    bundle = Bundle.open(directory / "variables" / "variables")
    return [tf.constant(bundle.array(one.name)) for one in graph.parameters]
