"""A trainer that publishes when it is told, as a process: `python -m bench.peers.publisher WAY KIND FOLDER ...`.

For each line, a number of seconds, it publishes a version now and one each second of these, and then says the number
of the last. Every value that a request looks up is the number of its version.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bench.lines import Lines
from paramsync import Publisher, PublishSchedule
from paramsync.errors import CallError

ROWS = 8  # of the table that a request looks up
_COLUMNS = 256
_LAYERS = ((784, 256), (256, 256), (256, 10))
_KEEP = 2
_PAUSE = 1.0  # seconds from version to version


class Trainer(Lines):
    """The process."""

    def __init__(self, way: str, kind: str, folder: Path, size: int) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__("bench.peers.publisher", way, kind, folder, "--bytes", size)
        self.version = 0
        self.milliseconds: list[float] = []  # that publishing took, of each version

    def publish(self, seconds: float) -> int:
        """Returns when these are over. Raises CallError."""
        began = time.monotonic()
        if not (said := self.ask(str(seconds))):
            raise CallError("the trainer has ended", "UNKNOWN")
        self.version, took = json.loads(said)
        self.milliseconds += took
        threading.Event().wait(began + seconds - time.monotonic())
        return self.version


class Dense(tf.Module):
    """784-256-256-10, as people know it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        self.layers = [
            (
                tf.Variable(random.normal(0, shape[0] ** -0.5, shape).astype(np.float32), name=f"kernel_{at}"),
                tf.Variable(random.normal(0, 0.1, shape[1]).astype(np.float32), name=f"bias_{at}"),
            )
            for at, shape in enumerate(_LAYERS)
        ]

    @tf.function(input_signature=[tf.TensorSpec([None, _LAYERS[0][0]], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        for kernel, bias in self.layers[:-1]:
            x = tf.nn.relu(tf.matmul(x, kernel) + bias)
        kernel, bias = self.layers[-1]
        return {"y": tf.matmul(x, kernel) + bias}

    def train(self, number: int) -> None:
        """Its parameters stay as they are."""


class Embedding(tf.Module):
    """A table of which few rows are looked up: a request is cheap, a version is not."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = tf.Variable(tf.zeros([max(ROWS, size // _COLUMNS // 4), _COLUMNS]), name="table")

    @tf.function(input_signature=[tf.TensorSpec([None, ROWS], tf.int32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.reduce_max(tf.gather(self.table, x), axis=[1, 2])[:, None]}

    def train(self, number: int) -> None:
        self.table[:ROWS].assign(tf.fill([ROWS, _COLUMNS], float(number)))


KINDS: dict[str, type[Dense] | type[Embedding]] = {"dense": Dense, "embedding": Embedding}
INPUTS: dict[str, Callable[[int], np.ndarray[Any, Any]]] = {
    "dense": lambda rows: np.random.default_rng(0).random((rows, _LAYERS[0][0]), np.float32),
    "embedding": lambda rows: np.tile(np.arange(ROWS, dtype=np.int32), (rows, 1)),
}


def into_store(folder: Path, module: Any) -> Callable[[int], object]:
    """As users of paramsync do."""
    publisher = Publisher(folder, module, schedule=PublishSchedule(at_end=False), keep=_KEEP)
    return lambda number: publisher.publish(number, wait=True)


def as_saved_model(folder: Path, module: Any) -> Callable[[int], object]:
    """A numbered folder, as for TensorFlow Serving."""

    def publish(number: int) -> None:
        aside = folder / f"aside-{number}"
        tf.saved_model.save(module, str(aside), signatures=module.__call__)
        aside.rename(folder / str(number))
        shutil.rmtree(folder / str(number - _KEEP), ignore_errors=True)

    return publish


def as_arrays(folder: Path, module: Any) -> Callable[[int], object]:
    """A file of NumPy's, for peers that run Python: renamed when it is complete."""

    def publish(number: int) -> None:
        values = [variable.numpy() for variable in module.variables]
        names = [variable.name.partition(":")[0] for variable in module.variables]
        kind = "npy" if names == ["table"] else "npz"
        aside = folder / f"aside.{kind}"
        if kind == "npy":
            np.save(aside, *values)
        else:
            np.savez(aside, **dict(zip(names, values, strict=True)))
        aside.rename(folder / f"{number}.{kind}")
        (folder / f"{number - _KEEP}.{kind}").unlink(missing_ok=True)

    return publish


WAYS: dict[str, Callable[[Path, Any], Callable[[int], object]]] = {
    "store": into_store,
    "savedmodel": as_saved_model,
    "arrays": as_arrays,
}


def _obey(module: Any, publish: Callable[[int], object]) -> None:
    numbers, bell = itertools.count(1), threading.Event()
    for line in sys.stdin:
        began, took = time.monotonic(), []
        for due in np.arange(0, float(line), _PAUSE):
            bell.wait(began + due - time.monotonic())
            if due and time.monotonic() - began >= float(line):
                break  # publishing takes longer than a pause
            number = next(numbers)
            module.train(number)
            before = time.perf_counter()
            publish(number)
            took.append((time.perf_counter() - before) * 1000)
        sys.stdout.write(f"{json.dumps([number, took])}\n")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.publisher")
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bytes", type=int, required=True)
    told = parser.parse_args()
    module = KINDS[told.kind](told.bytes)
    with contextlib.suppress(KeyboardInterrupt):
        _obey(module, WAYS[told.way](told.folder, module))


if __name__ == "__main__":
    main()
