"""Examples for the digits job: generated, or read from mnist.npz. Uses only numpy."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paramsync.errors import SettingsError
from paramsync.host import files

from . import glyphs

PIXELS = glyphs.SIDE * glyphs.SIDE
_DRAWN = 20_000
_DRAWN_HELD_OUT = 2_000
_KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, slots=True)
class Examples:
    """Pictures of digits, uint8 [n, 784], and their labels, int64 [n]."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def scaled(self) -> npt.NDArray[np.float32]:
        """Return the pictures as the network takes them: float32 in 0..1."""
        return self.images.astype(np.float32) / np.float32(255)

    def save(self, path: Path) -> None:
        """Write x (float32) and y (int64) as one file, which appears once it is complete. Raises SettingsError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.aside(path) as file:
                np.savez(file, x=self.scaled(), y=self.labels)
        except OSError as error:
            raise SettingsError(f"held-out examples cannot be written to {path}: {error.strerror}") from error


def drawn(*, seed: int) -> tuple[Examples, Examples]:
    """Generate examples to train on, and held-out examples. The same seed gives the same digits."""
    images, labels = glyphs.draw(_DRAWN + _DRAWN_HELD_OUT, seed=seed)
    pixels = np.rint(images * 255).astype(np.uint8)
    return Examples(pixels[:_DRAWN], labels[:_DRAWN]), Examples(pixels[_DRAWN:], labels[_DRAWN:])


def read(path: Path) -> tuple[Examples, Examples]:
    """Read the training and test examples of an `mnist.npz`. Raises SettingsError."""
    try:
        x_train, y_train, x_test, y_test = _arrays(path)
    except SettingsError:
        raise
    except Exception as error:  # numpy raises many kinds of errors for damaged files, even MemoryError
        raise SettingsError(f"{path} cannot be read as an .npz file: {' '.join(str(error).split())}") from error
    return _examples(path, "train", x_train, y_train), _examples(path, "test", x_test, y_test)


def _arrays(path: Path) -> list[npt.NDArray[Any]]:
    if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO would wait for a writer
        raise SettingsError(f"{path}: expected a regular file, found something else")
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        missing = [key for key in _KEYS if key not in file]
        if missing:
            raise SettingsError(f"{path}: expected the arrays {', '.join(_KEYS)}, found {', '.join(file) or 'none'}")
        return [file[key] for key in _KEYS]


def _examples(path: Path, part: str, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Examples:
    expected = f"uint8 [n, {glyphs.SIDE}, {glyphs.SIDE}]"
    if images.dtype != np.uint8 or images.shape[1:] != (glyphs.SIDE, glyphs.SIDE) or not len(images):
        raise SettingsError(f"{path}: x_{part}: expected {expected}, found {images.dtype} {list(images.shape)}")
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        expected = f"whole numbers [{len(images)}]"
        raise SettingsError(f"{path}: y_{part}: expected {expected}, found {labels.dtype} {list(labels.shape)}")
    if not np.isin(labels, range(10)).all():
        raise SettingsError(f"{path}: y_{part}: expected digits from 0 to 9, found {labels.min()} to {labels.max()}")
    return Examples(images.reshape(-1, PIXELS), labels.astype(np.int64))
