"""Meter: the step that training is at, its loss, its speed, and how long publishing held it."""

from __future__ import annotations

import operator
from typing import Any, SupportsFloat

from paramsync.errors import SettingsError
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
