"""The number of a training step, given by whatever a loop counts with. Knows no framework."""

from __future__ import annotations

import operator
from typing import Any

from paramsync.errors import SettingsError
from paramsync.store.layout import NUMBERS


def number_of(step: Any) -> int:
    """A step as an int: a whole number of numpy or another framework is one, and so is what a variable holds now.

    Raises SettingsError for anything else, and for what no version can have: below 0, or of more than 18 digits.
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
