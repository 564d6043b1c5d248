"""Meter: loss and speed for the operator. Gate: decides by metrics which steps to publish."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat, TypeAlias

from paramsync.errors import SettingsError

_WINDOW = 1.0  # seconds over which the speed is measured


class Meter:
    """Loss and speed. The training thread writes, any thread reads. A reader may wait until the loss is computed."""

    def __init__(self, step: int = 0, now: float | None = None) -> None:
        """`now` is the time when `step` ended. Without it, the speed is measured from the first call of `advance`."""
        self.first = self.step = step
        self.steps_per_second = 0.0
        self.stall: float | None = None  # seconds for which the last publication blocked training
        self._loss: SupportsFloat | None = None
        self._since = None if now is None else (step, now)

    def advance(self, step: int, loss: SupportsFloat | None, now: float) -> None:
        """Note that a step has ended."""
        self.step = step
        self._loss = loss
        if self._since is None:
            self.first, self._since = step, (step, now)
        before, began = self._since
        if now - began >= _WINDOW:
            self.steps_per_second = (step - before) / (now - began)
            self._since = (step, now)

    @property
    def loss(self) -> float | None:
        """The loss of the last step; None before the first step, or if the loss cannot be converted to a float."""
        try:
            return None if self._loss is None else float(self._loss)
        except Exception:  # noqa: BLE001, a value of any kind, perhaps computed on another device
            return None


Metrics = Mapping[str, SupportsFloat]
PublishIf: TypeAlias = "str | Callable[[Mapping[str, Any]], Any]"
"""A metric that must not get worse, or a function that gets all metrics and returns whether to publish."""

_LOWER = ("loss", "error", "mae", "mse", "mape", "msle", "perplexity")
_HIGHER = ("accuracy", "acc", "auc", "precision", "recall", "f1", "iou", "bleu")
_DIRECTIONS = ("min", "max")

_log = logging.getLogger("paramsync.trainer")


class Gate:
    """Compares the metrics of a step with the newest version's metrics. Belongs to the thread that trains."""

    def __init__(self, publish_if: PublishIf) -> None:
        """`publish_if` is a function, or a metric as "min NAME" or "max NAME". Raises SettingsError.

        NAME alone is enough if its last word, such as "loss" or "accuracy", shows whether lower or higher is better.
        """
        self._function = None if isinstance(publish_if, str) else publish_if
        if self._function is not None and not callable(self._function):
            raise SettingsError(f"publish_if: expected a metric's name or a function, found {publish_if!r:.80}")
        self._metric, self._less = ("", False) if not isinstance(publish_if, str) else _read(publish_if)
        self.held_back: str | None = None
        """The due step that is held back, and the reason; None if no step is held back."""

    def refuses(self, step: int, metrics: Metrics | None, published: Metrics) -> bool:
        """Return whether a step with `metrics` must not replace a version with the `published` metrics.

        Waits for a metric that is still being computed. If the function `publish_if` raises, the step is held back, and
        training goes on.
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
        """Return why the step is held back; None if it may be published."""
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
    """Return the metric's name, and whether lower values are better."""
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
