"""What one run of `paramsync up` has seen: versions published and served, answers, accuracies."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from paramsync.v1 import sync_pb2 as pb

_ROWS = 8
_RATE_SECONDS = 3.0
_EXAMPLE_SECONDS = 1.0  # long enough to look at a picture


@dataclass(frozen=True, slots=True)
class Example:
    """One held-out digit and what a version took it for."""

    image: np.ndarray
    label: int
    predicted: int
    version: int
    at: float


@dataclass(frozen=True, slots=True)
class Row:
    """One version, as far as it came. Seconds count from its commit."""

    number: int
    step: int | None
    published_at: float | None
    served_after: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything the display shows, at one moment."""

    training: pb.PublisherStatus | None
    model: pb.ModelStatus | None
    rows: tuple[Row, ...]  # newest first
    served: int
    predictions: int
    failed: int
    rate: float
    accuracies: tuple[float, ...]  # of each version that answered the whole sample, in the order they came to serve
    freshness: float | None  # median, from the end of the step to the first answer that came from it
    example: Example | None


@dataclass(slots=True)
class _Seen:
    version: pb.Version | None = None
    swapped_at: float | None = None
    answered_at: float | None = None
    right: dict[int, int] = field(default_factory=dict)  # by batch

    def row(self, number: int, accuracy: float | None) -> Row:
        published_at = self.version.committed_at if self.version else None
        served_after = None
        if published_at is not None and self.swapped_at is not None:
            served_after = max(0.0, self.swapped_at - published_at)
        return Row(number, self.version.step if self.version else None, published_at, served_after, accuracy)


class Ledger:
    """Many threads write, one reads; one lock, held for microseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[int, _Seen] = {}
        self._accuracies: dict[int, float] = {}
        self._answers: deque[float] = deque(maxlen=1000)
        self._training: pb.PublisherStatus | None = None
        self._model: pb.ModelStatus | None = None
        self._predictions = 0
        self._failed = 0
        self._last_failure = ""
        self._example: Example | None = None

    def training(self, status: pb.PublisherStatus) -> None:
        with self._lock:
            self._training = status

    def model(self, status: pb.ModelStatus) -> None:
        with self._lock:
            self._model = status

    def published(self, version: pb.Version) -> None:
        with self._lock:
            self._of(version.number).version = version

    def swapped(self, event: pb.Event) -> None:
        with self._lock:
            seen = self._of(event.version.number)
            seen.version = event.version
            seen.swapped_at = event.at

    def answered(self, example: Example, *, batch: int, right: int) -> None:
        """One request was answered by the example's version, which got so many of that batch right."""
        with self._lock:
            self._predictions += 1
            self._answers.append(example.at)
            seen = self._of(example.version)
            seen.right.setdefault(batch, right)
            if seen.answered_at is None:
                seen.answered_at = example.at
            if self._example is None or example.at - self._example.at >= _EXAMPLE_SECONDS:
                self._example = example

    def scored(self, number: int, *, examples: int) -> None:
        """The version has answered the whole sample."""
        with self._lock:
            self._accuracies[number] = sum(self._of(number).right.values()) / examples

    def failed(self, why: str) -> None:
        with self._lock:
            self._failed += 1
            self._last_failure = why

    @property
    def last_failure(self) -> str:
        """Why the last request that failed did so; empty if none failed."""
        return self._last_failure

    def view(self, now: float) -> View:
        with self._lock:
            newest = sorted(self._seen, reverse=True)[:_ROWS]
            return View(
                training=self._training,
                model=self._model,
                rows=tuple(self._seen[number].row(number, self._accuracies.get(number)) for number in newest),
                served=self._served(),
                predictions=self._predictions,
                failed=self._failed,
                rate=sum(now - at <= _RATE_SECONDS for at in self._answers) / _RATE_SECONDS,
                accuracies=tuple(self._accuracies.values()),
                freshness=self._freshness(),
                example=self._example,
            )

    def summary(self) -> dict[str, float | int | None]:
        """What the run comes to; the keys are those of `paramsync up --json`."""
        with self._lock:
            accuracies, freshness = list(self._accuracies.values()), self._freshness()
            return {  # what was seen was published, whether or not the trainer lived to say so
                "published": max(self._training.publishes if self._training else 0, len(self._seen)),
                "served": self._served(),
                "predictions": self._predictions,
                "failed": self._failed,
                "first_accuracy": accuracies[0] if accuracies else None,
                "last_accuracy": accuracies[-1] if accuracies else None,
                "freshness_ms_p50": None if freshness is None else round(freshness * 1000, 2),
            }

    def _of(self, number: int) -> _Seen:
        return self._seen.setdefault(number, _Seen())

    def _served(self) -> int:
        return sum(seen.answered_at is not None for seen in self._seen.values())

    def _freshness(self) -> float | None:
        took = [
            seen.answered_at - seen.version.step_done_at
            for seen in self._seen.values()
            if seen.answered_at is not None and seen.version is not None
        ]
        return statistics.median(took) if took else None
