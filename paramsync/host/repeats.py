"""Repeats: logs a repeated failure once, and then its count. Pure."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d+")  # such as that of a version, which differs each time


class Repeats:
    """Failures of one kind in a row: texts that differ only in numbers are of one kind. For one thread."""

    def __init__(self) -> None:
        self._kind: str | None = None
        self._count = 0

    def text(self, failure: str) -> str | None:
        """What to log: the failure the first time, with its count the 10th, 100th, 1000th time, else None."""
        kind = _NUMBER.sub("#", failure)
        self._count = self._count + 1 if kind == self._kind else 1
        self._kind = kind
        if self._count == 1:
            return failure
        is_told = self._count == 10 ** (len(str(self._count)) - 1)
        return f"{failure} (failure {self._count} of this kind in a row)" if is_told else None

    def over(self) -> int:
        """Start over after a success. Returns the number of failures of the last kind."""
        count, self._kind, self._count = self._count, None, 0
        return count
