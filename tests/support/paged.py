"""A server for tests of the page: a model of digits to draw, and a model whose names attack the page."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.graphs.capturing import capture
from paramsync.store.commit import StoreWriter
from paramsync.version import Version
from tests.support.inferencers import Process

HOSTILE = "<img src=x onerror=window.attacked=1>"
DIGITS = "digits"
TOKEN = "0123456789abcdef0123"


class Answers(tf.Module):
    """Ten logits of a picture, whose largest is at `best`."""

    def __init__(self) -> None:
        super().__init__()
        self.best = tf.Variable(tf.zeros([10]))

    @tf.function(input_signature=[tf.TensorSpec([None, 784], tf.float32, name="image")])
    def __call__(self, image: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"logits": tf.reduce_sum(image, axis=-1, keepdims=True) * 0.0 + self.best}


class Store:
    """A store of versions whose answers, loss and accuracy get better."""

    def __init__(self, path: Path, *, keep: int = 30) -> None:
        self.path = path
        self.number = 0
        self._writer = StoreWriter(path, keep=keep)
        self._found = capture(Answers())
        self._writer.add_graph(self._found.graph.digest, self._found.graph.to_bytes())

    def publish(self, *, bad: bool = False, metrics: dict[str, float] | None = None, age: float = 0.0) -> int:
        """Publish the next version, whose step was done `age` seconds ago. Returns its number."""
        self.number += 1
        now = time.time()
        loss = 0.2 + 2.1 * math.exp(-self.number / 12) + 0.04 * math.sin(2.4 * self.number)
        values: dict[str, Any] = {"loss": loss, "accuracy": 1 - loss / 2.6, **(metrics or {})}
        version = Version(
            number=self.number,
            step=10 * self.number,
            prefix=f"ckpt-{self.number}",
            graph=self._found.graph.digest,
            step_done_at=now - age,
            snapshot_at=now,
            metrics=values,
        )
        best = np.zeros(10, np.float32)
        best[3] = math.nan if bad else min(6.0, self.number / 4)
        [spec] = self._found.graph.parameters
        self._writer.commit(version, {spec.name: best}, finite=not bad)
        return self.number

    def close(self) -> None:
        self._writer.close()


def started(
    folder: Path, *stores: tuple[str, Path], workers: int = 2, rest_port: int = 0, flags: Sequence[str] = ()
) -> Process:
    """Start an inferencer of these stores, which takes actions from callers that show TOKEN."""
    tokens = folder / "tokens"
    tokens.write_text(f"ops:{TOKEN}\n")
    tokens.chmod(0o600)
    models = [word for name, path in stores for word in ("--model", f"{name}={path}")]
    process = Process(
        *models,
        *flags,
        "--rest-port",
        str(rest_port),
        "--workers",
        str(workers),
        "--state",
        folder / "state",
        "--token-file",
        tokens,
    )
    process.connect()
    return process
