"""Asks a model about held-out examples, gently, and at once when a new version serves."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paramsync.cli.ledger import Example, Ledger
from paramsync.errors import ParamsyncError
from paramsync.rpc.client import Predictor

_SAMPLE = 500
_BATCH = 100
_PAUSE = 0.1  # between requests to a version that has answered the whole sample


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Examples that are not trained on, in batches."""

    images: tuple[np.ndarray, ...]
    labels: tuple[np.ndarray, ...]

    @classmethod
    def read(cls, path: Path) -> HeldOut:
        with np.load(path) as found:
            images, labels = found["x"][:_SAMPLE], found["y"][:_SAMPLE]
        cuts = range(_BATCH, len(images), _BATCH)
        return cls(tuple(np.split(images, cuts)), tuple(np.split(labels, cuts)))

    @property
    def examples(self) -> int:
        return sum(map(len, self.labels))


class Prober:
    """One thread. A version that is new gets the whole sample at once; then one batch every now and then."""

    def __init__(self, predictor: Predictor, held_out: HeldOut, ledger: Ledger, *, model: str, input_name: str) -> None:
        self._predictor = predictor
        self._held_out = held_out
        self._ledger = ledger
        self._model = model
        self._input = input_name
        self._bell = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="prober", daemon=True)
        self._version = 0
        self._missing: set[int] = set()  # batches that the version has not answered
        self._asked = 0

    def start(self) -> None:
        self._thread.start()

    def ring(self) -> None:
        """A new version serves: ask now. Any thread."""
        self._bell.set()

    def stop(self) -> None:
        """Returns once the request under way is answered."""
        self._stopping.set()
        self._bell.set()
        self._thread.join()

    def run_once(self) -> bool:
        """One request. False where the next one can wait."""
        batch = min(self._missing, default=self._asked % len(self._held_out.labels))
        self._asked += 1
        try:
            prediction = self._predictor.predict(self._model, {self._input: self._held_out.images[batch]})
        except ParamsyncError as error:
            self._ledger.failed(str(error))
            return False
        if prediction.version != self._version:
            self._version, self._missing = prediction.version, set(range(len(self._held_out.labels)))
        (scores,) = prediction.outputs.values()
        self._record(batch, scores.argmax(axis=1))
        return bool(self._missing)

    def _record(self, batch: int, predicted: np.ndarray) -> None:
        labels, images = self._held_out.labels[batch], self._held_out.images[batch]
        shown = self._asked % len(labels)  # another one every time
        example = Example(images[shown], int(labels[shown]), int(predicted[shown]), self._version, time.time())
        self._ledger.answered(example, batch=batch, right=int((predicted == labels).sum()))
        if batch in self._missing:
            self._missing.remove(batch)
            if not self._missing:
                self._ledger.scored(self._version, examples=self._held_out.examples)

    def _loop(self) -> None:
        while not self._stopping.is_set():
            if not self.run_once():
                self._bell.wait(_PAUSE)
                self._bell.clear()
