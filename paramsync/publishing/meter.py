"""Meter: the step training is at, its loss, its speed, and how long publishing held it."""

from __future__ import annotations

from typing import SupportsFloat

_WINDOW = 1.0  # seconds over which the speed is measured


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
