"""Captured graphs of TensorFlow 1: what their parameters are called, and what they answer from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.checkpoint.reader import Bundle
from paramsync.graphs.draft import finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.meta_graphs import capture_meta
from paramsync.graphs.sources.saved_models import SavedModel
from paramsync.graphs.specs import DEFAULT_SIGNATURE

v1 = tf.compat.v1
ONES = np.ones((1, 4), np.float32)


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
