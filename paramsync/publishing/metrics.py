"""What a step says of itself: its number, its loss and metrics, its speed, and whether a gate has it published."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat, TypeAlias

from paramsync.errors import SettingsError
from paramsync.host import files
from paramsync.store.layout import NUMBERS

_WINDOW = 1.0  # seconds over which the speed is measured


def step_number(step: Any) -> int:
    """A step as an int: from a whole number of any framework, or a variable that holds one.

    Raises SettingsError for anything else, and for numbers that no version has: below 0, or of more than 18 digits.
    """
    number: int = step if type(step) is int else _whole(step)
    if not 0 <= number < NUMBERS:
        raise SettingsError(f"step: expected a whole number from 0 to {NUMBERS - 1}, found {number}")
    return number


def _whole(step: Any) -> int:
    try:
        held = step.numpy() if hasattr(step, "numpy") else step  # of a variable, or a tensor
        return int(operator.index(held))
    except TypeError as error:
        raise SettingsError(f"step: expected a whole number, found {type(step).__name__} {step!r:.80}") from error


class Meter:
    """Written by the thread that trains, read from any: a reader waits for nothing but a loss still being computed."""

    def __init__(self, step: int, now: float) -> None:
        self.step = step
        self.steps_per_second = 0.0
        self.stall: float | None = None  # seconds that the last publication held the thread that trains
        self._loss: SupportsFloat | None = None
        self._since = (step, now)

    def advance(self, step: int, loss: SupportsFloat | None, now: float) -> None:
        """A step is done."""
        self.step = step
        self._loss = loss
        before, began = self._since
        if now - began >= _WINDOW:
            self.steps_per_second = (step - before) / (now - began)
            self._since = (step, now)

    @property
    def loss(self) -> float | None:
        """The loss of the last step; None before the first, and where it is no number."""
        try:
            return None if self._loss is None else float(self._loss)
        except Exception:  # noqa: BLE001, a value of any kind, perhaps computed on another device
            return None


Metrics = Mapping[str, SupportsFloat]
PublishIf: TypeAlias = "str | Callable[[Mapping[str, Any]], Any]"
"""The metric that must not get worse, or a function of all metrics that says whether to publish."""

_LOWER = ("loss", "error", "mae", "mse", "mape", "msle", "perplexity")
_HIGHER = ("accuracy", "acc", "auc", "precision", "recall", "f1", "iou", "bleu")
_LONG = 200  # characters of a metric's name
_DIRECTIONS = ("min", "max")

_log = logging.getLogger("paramsync.trainer")


class Gate:
    """Decides by the metrics of a step and those of the newest version. Belongs to the thread that trains."""

    def __init__(self, publish_if: PublishIf) -> None:
        """A metric whose name does not say whether less or more is better has `min` or `max` before it, and a space.

        Raises SettingsError.
        """
        self._function = None if isinstance(publish_if, str) else publish_if
        if self._function is not None and not callable(self._function):
            raise SettingsError(f"publish_if: expected a metric's name or a function, found {publish_if!r:.80}")
        self._metric, self._less = ("", False) if not isinstance(publish_if, str) else _read(publish_if)
        self.held_back: str | None = None
        """The step that was due last and was not published, and why; None where there is none."""

    def refuses(self, step: int, metrics: Metrics | None, published: Metrics) -> bool:
        """Whether a step with `metrics` must not take the place of a version with the `published` ones.

        Waits for a metric that is still being computed. A function that raises holds the step back: training goes on.
        """
        try:
            why = "no metrics are known" if metrics is None else self.refusal(metrics, published)
        except Exception as error:  # noqa: BLE001, whatever the function does
            why = f"publish_if raised {type(error).__name__}: {error}"
        if why is not None and self.held_back is None:
            _log.info("step %d is held back: %s", step, why)
        self.held_back = None if why is None else f"step {step}: {why}"
        return why is not None

    def refusal(self, metrics: Metrics, published: Metrics) -> str | None:
        """Why a step with `metrics` is not published over a version with the `published` ones; None where it is."""
        if self._function is not None:
            return None if self._function(metrics) else "publish_if says no"
        if self._metric not in metrics:
            return f"{self._metric} is not known at this step"
        value = float(metrics[self._metric])
        if math.isnan(value):
            return f"{self._metric} is NaN"
        if self._metric not in published:
            return None
        before = float(published[self._metric])
        if not (value > before if self._less else value < before):
            return None
        return f"{self._metric} {value:.6g} is worse than {before:.6g}, which is published"


def _read(text: str) -> tuple[str, bool]:
    """The metric's name, and whether less of it is better."""
    direction, _, name = text.partition(" ")
    if direction in _DIRECTIONS and name:
        return name, direction == "min"
    last = text.lower().replace("-", "_").rpartition("_")[2]
    if last in _LOWER or last in _HIGHER:
        return text, last in _LOWER
    raise SettingsError(
        f'publish_if: expected a metric, such as "val_loss", found {text!r}, of which nobody knows whether less or more'
        f' is better: say "min {text}" or "max {text}"'
    )


class MetricReader:
    """Reads metrics as numbers: one that cannot be read, or recorded, must not cost a version. Belongs to one thread.

    A metric that is no number, or whose name cannot be shown, is left out, with one warning for each name.
    """

    def __init__(self) -> None:
        self._told: set[str] = set()

    def read(self, metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
        """The metrics as numbers; waits for those still being computed."""
        read = {}
        for name, value in metrics.items():
            try:
                _check(name)
                read[name] = float(value)
            except Exception as error:  # noqa: BLE001, a value of any kind, perhaps computed on another device
                self._warn(name, error)
        return read

    def _warn(self, name: str, error: Exception) -> None:
        if name not in self._told:
            self._told.add(name)
            _log.warning("metric %s is left out of all versions it is no number in: %.300s", files.shown(name), error)


def _check(name: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or len(name) > _LONG:
        raise ValueError(f"expected a name of at most {_LONG} characters that can be shown")
