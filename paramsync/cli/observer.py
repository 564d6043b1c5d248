"""What one run of `paramsync up` sees: versions published and served, answers about held-out examples, accuracies."""

from __future__ import annotations

import contextlib
import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paramsync.errors import CallError, ParamsyncError
from paramsync.rpc.client import Inferencer, Predictor, Stream, Trainer
from paramsync.v1 import sync_pb2 as pb

_RATE_SECONDS = 3.0
_EXAMPLE_SECONDS = 1.0  # long enough to look at a picture
_SAMPLE = 500
_BATCH = 100
_PAUSE = 0.1  # between requests to a version that has answered the whole sample
_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Example:
    """One held-out digit and what a version took it for."""

    image: np.ndarray
    label: int
    predicted: int
    version: int
    at: float


@dataclass(slots=True)
class ObservedVersion:
    """One version, as far as it came."""

    number: int
    version: pb.Version | None = None  # as its publisher or the inferencer told of it
    swapped_at: float | None = None
    answered_at: float | None = None
    right: dict[int, int] = field(default_factory=dict)  # answers, by batch
    accuracy: float | None = None  # once it has answered the whole sample

    @property
    def served_after(self) -> float | None:
        """Seconds from its commit until it served."""
        if self.version is None or self.swapped_at is None:
            return None
        return max(0.0, self.swapped_at - self.version.committed_at)


class Ledger:
    """All that was seen. Belongs to one thread."""

    def __init__(self) -> None:
        self.training: pb.PublisherStatus | None = None
        self.model: pb.ModelStatus | None = None
        self.predictions = 0
        self.failed = 0
        self.last_failure = ""
        self.example: Example | None = None
        self._seen: dict[int, ObservedVersion] = {}
        self._answers: deque[float] = deque(maxlen=1000)

    def published(self, version: pb.Version) -> None:
        self._of(version.number).version = version

    def swapped(self, event: pb.Event) -> None:
        seen = self._of(event.version.number)
        seen.version = event.version
        seen.swapped_at = event.at

    def answered(self, example: Example, *, batch: int, right: int) -> Collection[int]:
        """The example's version answered one request, and got so many of that batch right.

        Returns the batches that it has answered by now.
        """
        self.predictions += 1
        self._answers.append(example.at)
        seen = self._of(example.version)
        seen.right.setdefault(batch, right)
        if seen.answered_at is None:
            seen.answered_at = example.at
        if self.example is None or example.at - self.example.at >= _EXAMPLE_SECONDS:
            self.example = example
        return seen.right.keys()

    def scored(self, number: int, *, examples: int) -> None:
        """The version has answered the whole sample."""
        seen = self._of(number)
        seen.accuracy = sum(seen.right.values()) / examples

    def refused(self, why: str) -> None:
        """A request failed."""
        self.failed += 1
        self.last_failure = why

    def newest(self, count: int) -> list[ObservedVersion]:
        """The newest versions, newest first."""
        return [self._seen[number] for number in sorted(self._seen, reverse=True)[:count]]

    @property
    def accuracies(self) -> list[float]:
        """Of the versions that have answered the whole sample, oldest first."""
        return [seen.accuracy for seen in self._seen.values() if seen.accuracy is not None]

    @property
    def accuracy(self) -> float | None:
        """Of the newest of them."""
        return self.accuracies[-1] if self.accuracies else None

    @property
    def served(self) -> int:
        return sum(seen.answered_at is not None for seen in self._seen.values())

    def rate(self, now: float) -> float:
        """Answers a second, over the last seconds."""
        return sum(now - at <= _RATE_SECONDS for at in self._answers) / _RATE_SECONDS

    def freshness(self) -> float | None:
        """Seconds from the end of a step to the first answer that came from it: their median."""
        took = [
            seen.answered_at - seen.version.step_done_at
            for seen in self._seen.values()
            if seen.answered_at is not None and seen.version is not None
        ]
        return statistics.median(took) if took else None

    def summary(self) -> dict[str, float | int | None]:
        """What the run comes to; the keys are those of `paramsync up --json`."""
        accuracies, freshness = self.accuracies, self.freshness()
        return {  # what was seen was published, whether or not the trainer lived to say so
            "published": max(self.training.publishes if self.training else 0, len(self._seen)),
            "served": self.served,
            "predictions": self.predictions,
            "failed": self.failed,
            "first_accuracy": accuracies[0] if accuracies else None,
            "last_accuracy": accuracies[-1] if accuracies else None,
            "freshness_ms_p50": None if freshness is None else round(freshness * 1000, 2),
        }

    def _of(self, number: int) -> ObservedVersion:
        return self._seen.setdefault(number, ObservedVersion(number))


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Examples that are not trained on, in batches."""

    images: tuple[np.ndarray, ...]
    labels: tuple[np.ndarray, ...]

    @classmethod
    def read(cls, path: Path) -> HeldOut:
        with np.load(path) as file:
            images, labels = file["x"][:_SAMPLE], file["y"][:_SAMPLE]
        cuts = range(_BATCH, len(images), _BATCH)
        return cls(tuple(np.split(images, cuts)), tuple(np.split(labels, cuts)))

    @property
    def examples(self) -> int:
        return sum(map(len, self.labels))


class Prober:
    """Asks a model about held-out examples: a version that is new about the whole sample, then one batch in turn."""

    def __init__(self, predictor: Predictor, held_out: HeldOut, ledger: Ledger, *, model: str, input_name: str) -> None:
        self._predictor = predictor
        self._held_out = held_out
        self._ledger = ledger
        self._model = model
        self._input = input_name
        self._batch = 0  # to ask about next
        self._answered = 0

    def run_once(self) -> bool:
        """One request. False where the next one can wait."""
        images, labels = self._held_out.images[self._batch], self._held_out.labels[self._batch]
        try:
            prediction = self._predictor.predict(self._model, {self._input: images})
        except ParamsyncError as error:
            self._ledger.refused(str(error))
            return False
        (scores,) = prediction.outputs.values()
        predicted = scores.argmax(axis=1)
        self._answered += 1
        at = self._answered % len(labels)  # the example that is shown: another one every time
        example = Example(images[at], int(labels[at]), int(predicted[at]), prediction.version, time.time())
        answered = self._ledger.answered(example, batch=self._batch, right=int((predicted == labels).sum()))
        batches = len(self._held_out.labels)
        missing = [batch for batch in range(batches) if batch not in answered]
        self._batch = missing[0] if missing else self._answered % batches
        if not missing:
            self._ledger.scored(prediction.version, examples=self._held_out.examples)
        return bool(missing)


class Observer:
    """Follows a trainer and an inferencer from outside, and writes into a ledger what they do.

    One thread owns it; two more listen to the programs, and queue what they hear. Closing the clients ends them.
    """

    def __init__(self, trainer: Trainer, inferencer: Inferencer, prober: Prober, ledger: Ledger, *, model: str) -> None:
        self._trainer = trainer
        self._inferencer = inferencer
        self._prober = prober
        self._ledger = ledger
        self._model = model
        self._heard: queue.SimpleQueue[pb.Version | pb.Event] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin to listen."""
        for name, watch in (
            ("trainer", self._trainer.watch),
            ("inferencer", lambda: self._inferencer.watch(self._model)),
        ):
            threading.Thread(target=self._listen, args=(watch,), name=f"listen-{name}", daemon=True).start()

    def run_once(self) -> None:
        """Ask once; then note what was heard, for which it waits a moment unless the version has more to answer."""
        timeout = 0.0 if self._prober.run_once() else _PAUSE
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._heard.get(timeout=timeout)
                timeout = 0.0
                if isinstance(message, pb.Version):
                    self._ledger.published(message)
                elif message.kind == pb.Event.SWAPPED:
                    self._ledger.swapped(message)

    def look(self) -> None:
        """Ask both for their status. Who does not answer keeps the last one: their processes are watched elsewhere."""
        with contextlib.suppress(CallError):
            self._ledger.training = self._trainer.status()
        with contextlib.suppress(CallError):
            (self._ledger.model,) = self._inferencer.status(self._model)

    def stop(self) -> None:
        """Have a last look, and stop listening."""
        self._stopping.set()
        self.look()

    def _listen(self, watch: Callable[[], Stream[pb.Version] | Stream[pb.Event]]) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(CallError):
                for message in watch():
                    self._heard.put(message)
            self._stopping.wait(_AGAIN_SECONDS)
