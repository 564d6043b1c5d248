"""A model that returns its inputs, of every datatype of KServe's protocol, and its version."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from paramsync.graphs.capturing import capture
from paramsync.store.commit import StoreWriter
from paramsync.version import Version
from tests.support.values import VALUES


class _Echo(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.number = tf.Variable(0.0)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.as_dtype(array.dtype), name=name.lower()) for name, array in VALUES.items()
        ]
    )
    def every(self, *tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        same = {name.lower(): tf.identity(one) for name, one in zip(VALUES, tensors, strict=True)}
        return {**same, "version": tf.identity(self.number)}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def negated(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": -x, "half": tf.cast(x, tf.float16), "version": tf.identity(self.number)}

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32, name="x")])
    def shaped(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"x": tf.identity(x), "complex": tf.complex(x, x), "version": tf.identity(self.number)}

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32, name="x")])
    def summed(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"sum": tf.reduce_sum(x), "version": tf.identity(self.number)}


class Echoes:
    """Publishes the model into one directory."""

    def __init__(self, path: Path) -> None:
        model = _Echo()
        named = {name: getattr(model, name) for name in ("negated", "shaped", "summed")}
        self._found = capture(model, signatures={"serving_default": model.every, **named})
        self._writer = StoreWriter(path)

    def publish(self, step: int) -> Version:
        self._writer.add_graph(self._found.graph.digest, self._found.graph.to_bytes())
        [spec] = self._found.graph.parameters
        number, now = self._writer.next_number(step), time.time()
        version = Version(
            number=number,
            step=step,
            prefix=f"ckpt-{number}",
            graph=self._found.graph.digest,
            step_done_at=now,
            snapshot_at=now,
        )
        return self._writer.commit(version, {spec.name: np.array(number, np.float32)})

    def close(self) -> None:
        self._writer.close()
