"""A trainer that publishes at a pace, as a process of its own: `python -m bench.publishing STORE KIND ...`."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bench.arrays import Array
from bench.ours import Publications
from bench.served import said_ready
from paramsync.graphs.capturing import capture

ROWS = 8  # of the table that a request looks up; of the dense network the width of what comes in
_COLUMNS = 256
_WARM = 5  # versions until files are recycled


class Embedding(tf.Module):
    """A large table of which few rows are looked up: a request is cheap, a version is not."""

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
        """Have every answer be the number."""
        for value in parameters.values():
            value.reshape(-1)[: ROWS * _COLUMNS] = number


class Dense(tf.Module):
    """A product with a large matrix: a request reads all of a version."""

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
        """Have every answer be the number: the products are zero, what is added is not."""
        for value in parameters.values():
            if value.ndim == 1:
                value[:] = number


KINDS: dict[str, type[Embedding] | type[Dense]] = {"embedding": Embedding, "dense": Dense}
INPUTS: dict[str, np.ndarray[Any, Any]] = {
    "embedding": np.arange(ROWS, dtype=np.int32)[None],
    "dense": np.ones((1, ROWS), np.float32),
}


class Ours:
    """As a `Publisher` does by default, into a store whose files are recycled."""

    def __init__(self, folder: Path, module: Any) -> None:
        captured = capture(module)
        names = [one.name for one in captured.graph.parameters]
        self.values = {name: one.numpy() for name, one in zip(names, captured.variables, strict=True)}
        self._publications = Publications(folder, captured)

    def publish(self, number: int) -> None:
        self._publications.publish(self.values, step=number, finite=True)


class Stock:
    """Through what TensorFlow's users write."""

    def __init__(self, folder: Path, module: Any) -> None:
        self.folder, self.module = folder, module
        folder.mkdir(exist_ok=True)
        self._variables = module.variables
        self.values = {one.name: one.numpy() for one in self._variables}
        self._manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=module), str(folder), max_to_keep=2)

    def publish(self, number: int) -> None:
        for one in self._variables:
            one.assign(self.values[one.name])
        self.save(number)

    def save(self, number: int) -> None:
        self._manager.save(number)


class SavedModels(Stock):
    def save(self, number: int) -> None:
        aside = self.folder / f"aside-{number}"
        tf.saved_model.save(self.module, str(aside))
        aside.rename(self.folder / str(number))
        shutil.rmtree(self.folder / str(number - 2), ignore_errors=True)


HOW: dict[str, Callable[[Path, Any], Any]] = {"ours": Ours, "checkpoint": Stock, "savedmodel": SavedModels}


def publish(how: str, kind: str, size: int, folder: Path, *, first: int, pause: float, count: int) -> None:
    """So many versions, one each `pause` seconds or as soon as that can be done, with the number in every answer."""
    publisher = HOW[how](folder, KINDS[kind](size))
    bell, due = threading.Event(), time.monotonic()
    for number in range(first, first + count):
        KINDS[kind].mark(publisher.values, number)
        publisher.publish(number)
        if number == first + min(_WARM, count) - 1:
            said_ready("bench.publishing", "none:0")
        due = max(due + pause, time.monotonic())
        bell.wait(due - time.monotonic())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.publishing")
    parser.add_argument("folder", type=Path)
    parser.add_argument("how", choices=HOW)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True)
    parser.add_argument("--count", type=int, required=True)
    found = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        publish(
            found.how, found.kind, found.bytes, found.folder, first=found.first, pause=found.pause, count=found.count
        )


if __name__ == "__main__":
    main()
