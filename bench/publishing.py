"""A process that publishes like a trainer, at a steady pace: `python -m bench.publishing STORE KIND ...`."""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bench.arrays import Array
from bench.model import WARM_UPS, Publications
from bench.served import Served, say_ready
from paramsync.graphs.capturing import capture

ROWS = 8  # rows of the table that a request looks up; also the width of the dense network's input
PAUSE = 0.1  # seconds from version to version

_COLUMNS = 256


class Embedding(tf.Module):
    """A large table of which a request looks up few rows: requests are cheap, and versions are expensive."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = tf.Variable(tf.zeros([max(ROWS, size // _COLUMNS // 4), _COLUMNS]), name="table")
        self.bias = tf.Variable(tf.zeros([_COLUMNS]), name="bias")

    @tf.function(input_signature=[tf.TensorSpec([None, ROWS], tf.int32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        looked_up = tf.reduce_max(tf.gather(self.table, x), axis=[1, 2])
        return {"y": looked_up, "bias": tf.zeros_like(looked_up) + self.bias[0]}

    @staticmethod
    def mark(parameters: dict[str, Array], number: int) -> None:
        """Change the parameters so that every answer is this number."""
        for value in parameters.values():
            value.reshape(-1)[: ROWS * _COLUMNS] = number


class Dense(tf.Module):
    """A product with a large matrix: each request reads a whole version."""

    def __init__(self, size: int) -> None:
        super().__init__()
        width = max(ROWS, int((size / 4) ** 0.5))
        self.first = tf.Variable(tf.zeros([ROWS, width]), name="first")
        self.second = tf.Variable(tf.zeros([width, width]), name="second")
        self.bias = tf.Variable(tf.zeros([width]), name="bias")

    @tf.function(input_signature=[tf.TensorSpec([None, ROWS], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        computed = tf.matmul(tf.matmul(x, self.first), self.second) + self.bias
        return {"y": computed[:, 0], "bias": tf.zeros_like(computed[:, 0]) + self.bias[0]}

    @staticmethod
    def mark(parameters: dict[str, Array], number: int) -> None:
        """Change the parameters so that every answer is this number: the products stay zero, and the bias is added."""
        for value in parameters.values():
            if value.ndim == 1:
                value[:] = number


KINDS: dict[str, type[Embedding] | type[Dense]] = {"embedding": Embedding, "dense": Dense}
INPUTS: dict[str, np.ndarray[Any, Any]] = {
    "embedding": np.arange(ROWS, dtype=np.int32)[None],
    "dense": np.ones((1, ROWS), np.float32),
}


def publisher(store: Path, kind: str, size: int, *, first: int, count: int) -> Served:
    """Start this program. Returns once it has published enough versions for each new version to recycle files."""
    options = {"first": first, "bytes": size, "count": count}
    arguments = [str(store), kind, *(f"--{name}={value}" for name, value in options.items())]
    return Served("bench.publishing", arguments, log=store.with_name(f"{store.name}-{first}.log"))


def _publish(store: Path, kind: str, size: int, *, first: int, count: int) -> None:
    """Publish versions like a `Publisher` with default settings, PAUSE seconds apart or as fast as possible."""
    captured = capture(KINDS[kind](size))
    names = [spec.name for spec in captured.graph.parameters]
    values = {name: variable.numpy() for name, variable in zip(names, captured.variables, strict=True)}
    bell, due = threading.Event(), time.monotonic()
    with Publications(store, captured) as publications:
        for number in range(first, first + count):
            KINDS[kind].mark(values, number)
            publications.publish(values, step=number, finite=True)
            if number == first + min(WARM_UPS, count) - 1:
                say_ready("bench.publishing", "none:0")
            due = max(due + PAUSE, time.monotonic())
            bell.wait(due - time.monotonic())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.publishing")
    parser.add_argument("store", type=Path)
    parser.add_argument("kind", choices=KINDS)
    for name in ("first", "bytes", "count"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        _publish(given.store, given.kind, given.bytes, first=given.first, count=given.count)


if __name__ == "__main__":
    main()
