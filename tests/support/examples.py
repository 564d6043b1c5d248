"""A store of a TensorFlow 1 SavedModel that takes examples. Its only parameter is the version's number."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.store.commit import StoreWriter
from paramsync.version import Version

LABELS = ["no", "yes"]
v1 = tf.compat.v1


def save_model(path: Path) -> Path:
    """Save a model with signatures of every method. Feature `x` of an example is two floats, `bias` one, by default 0.

    A score is x * w, a regression the sum of x * w and the bias, where w is the parameter.
    """
    with tf.Graph().as_default(), v1.Session() as session:
        serialised = v1.placeholder(tf.string, [None], name="serialised")
        features = {"x": v1.FixedLenFeature([2], tf.float32), "bias": v1.FixedLenFeature([1], tf.float32, [0.0])}
        parsed = v1.parse_example(serialised, features)
        w = v1.get_variable("w", [], initializer=v1.ones_initializer())
        scores = parsed["x"] * w
        labels = tf.tile(tf.constant([LABELS]), [tf.shape(scores)[0], 1])
        sums = tf.reduce_sum(scores, axis=-1, keepdims=True) + parsed["bias"]
        session.run(v1.global_variables_initializer())
        kinds = {
            "serving_default": _signature("classify", serialised, classes=labels, scores=scores),
            "scores": _signature("classify", serialised, scores=scores),
            "labels": _signature("classify", serialised, classes=labels),
            "unequal": _signature("classify", serialised, classes=labels[:, :1], scores=scores),
            "numbers": _signature("classify", serialised, classes=scores),
            "regress": _signature("regress", serialised, outputs=sums),
            "flat": _signature("regress", serialised, outputs=sums[:, 0]),
            "wide": _signature("regress", serialised, outputs=scores),
            "one": _signature("regress", serialised, outputs=tf.reduce_sum(sums, keepdims=True)[0]),
            "predict": _signature("predict", serialised, outputs=sums),
        }
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map=kinds)
        builder.save()
    return path


def _signature(method: str, serialised: Any, **outputs: Any) -> Any:
    info = v1.saved_model.build_tensor_info
    return v1.saved_model.build_signature_def(
        {"inputs": info(serialised)},
        {name: info(tensor) for name, tensor in outputs.items()},
        f"tensorflow/serving/{method}",
    )


class Store:
    """Publishes versions of that model."""

    def __init__(self, path: Path, graph: Graph) -> None:
        self._graph = graph
        self._writer = StoreWriter(path)

    @classmethod
    def make(cls, path: Path, saved: Path) -> Store:
        return cls(path, capture(save_model(saved)).graph)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def publish(self, number: int) -> None:
        self._writer.add_graph(self._graph.digest, self._graph.to_bytes())
        version = Version(
            number=number,
            step=number,
            prefix=f"ckpt-{number}",
            graph=self._graph.digest,
            step_done_at=1.0,
            snapshot_at=1.0,
        )
        self._writer.commit(version, {one.name: np.full([], number, np.float32) for one in self._graph.parameters})


def example(*x: float, **more: float) -> Any:
    feature = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=x))} if x else {}
    for name, value in more.items():
        feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
    return tf.train.Example(features=tf.train.Features(feature=feature))
