"""Decides when a publication is due, and reads step numbers. Pure: times and publications are arguments."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

from paramsync.errors import SettingsError
from paramsync.version import NUMBERS


class Moment(NamedTuple):
    """A step and its time, in seconds of a clock that never goes back."""

    step: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSchedule:
    """Publish after `every_steps` steps or `every_seconds` seconds, whichever comes first.

    With neither, only the start, the end, and steps that an operator requests are published. By default the start is
    published only if the store has no version yet, so that a restarted training does not replace a trained version.
    `at_start=True` always publishes the start, `at_start=False` never.

        schedule = PublishSchedule(every_steps=100, every_seconds=30)
        if schedule.due(step, now, since=last): ...
    """

    every_steps: int | None = None
    every_seconds: float | None = None
    at_start: bool | None = None
    at_end: bool = True

    def __post_init__(self) -> None:
        for name in ("every_steps", "every_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SettingsError(f"{name}: expected a number above 0, found {value}")

    def due(self, step: int, now: float, *, since: Moment | None, empty: bool = True) -> bool:
        """Return whether to publish `step` now. `since` is the last publication, or the moment when counting began;
        None at the start of training, when only `at_start` and `empty` decide.

        `empty` is True if the store had no version at the start. With `every_steps`, a step below the last published
        step is due at once, because training went back to an earlier step.
        """
        if since is None:
            return empty if self.at_start is None else self.at_start
        if step == since.step:
            return False  # published already, or passed over at the start
        by_steps = self.every_steps is not None and not 0 <= step - since.step < self.every_steps
        by_seconds = self.every_seconds is not None and now - since.time >= self.every_seconds
        return by_steps or by_seconds

    def due_at_end(self, step: int, *, published: int | None) -> bool:
        """Return whether to publish the last step of training. `published` is the last published step, or None."""
        return self.at_end and step != published


def step_number(step: Any) -> int:
    """Return a step as an int. It may be a whole number of any framework, or a variable with such a value.

    Raises SettingsError for anything else, and for numbers below 0 or of more than 18 digits.
    """
    number: int = step if type(step) is int else _whole(step)
    if not 0 <= number < NUMBERS:
        raise SettingsError(f"step: expected a whole number from 0 to {NUMBERS - 1}, found {number}")
    return number


def _whole(step: Any) -> int:
    try:
        held = step.numpy() if hasattr(step, "numpy") else step  # a variable or a tensor has `numpy`
        return int(operator.index(held))
    except TypeError as error:
        raise SettingsError(f"step: expected a whole number, found {type(step).__name__} {step!r:.80}") from error
