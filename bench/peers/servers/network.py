"""What peers compute, in NumPy alone, and where its parameters are. Runs where a peer is installed: imports no more.

NumPy computes the small network in less time than a call of TensorFlow takes, which is to the peers' advantage.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_LOOK = 0.01  # seconds between two looks at the folder


class Dense:
    """784-256-256-10, of a file with a kernel and a bias for each layer."""

    dtype, width, classes = np.float32, 784, 10

    def __init__(self, path: Path) -> None:
        with np.load(path) as layers:
            self._layers = [(layers[f"kernel_{at}"], layers[f"bias_{at}"]) for at in range(3)]

    def __call__(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        for kernel, bias in self._layers[:-1]:
            x = np.maximum(x @ kernel + bias, 0)
        kernel, bias = self._layers[-1]
        return x @ kernel + bias


class Embedding:
    """The largest value of some rows of a table: the number of a version, which all its values are."""

    dtype, width, classes = np.int32, 8, 1

    def __init__(self, path: Path) -> None:
        self._table = np.load(path)

    def __call__(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        largest: np.ndarray[Any, Any] = self._table[x].max(axis=(1, 2))
        return largest[:, None]


KINDS: dict[str, type[Dense] | type[Embedding]] = {"dense": Dense, "embedding": Embedding}


def newest(folder: Path) -> Path:
    """The file with the highest number. Files get their names when they are complete."""
    return max((file for file in folder.iterdir() if file.stem.isdecimal()), key=lambda file: int(file.stem))


class Following:
    """The newest network of a folder: a thread reads each new file and puts it in the place of the one before."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = KINDS[kind], folder
        self.path = newest(folder)
        self.network = self._kind(self.path)
        threading.Thread(target=follow, args=(folder, self.path, self._replace), daemon=True).start()

    def _replace(self, path: Path) -> None:
        self.network = self._kind(path)


def follow(folder: Path, seen: Path, replace: Callable[[Path], object]) -> None:
    """Call `replace` with each file that is newer than `seen`."""
    bell = threading.Event()
    while True:
        if (path := newest(folder)) != seen:
            replace(path)
            seen = path
        bell.wait(_LOOK)


def arguments() -> argparse.Namespace:
    """What every server is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    return parser.parse_args()
