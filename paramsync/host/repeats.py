"""Repeats: has a failure that comes again and again told once, and then its count. Pure."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d+")  # of a version, say, which is another one each time


class Repeats:
    """The failures of one kind in a row, where texts that differ in numbers alone are of one kind. One thread's."""

    def __init__(self) -> None:
        self._kind: str | None = None
        self._count = 0

    def text(self, failure: str) -> str | None:
        """What to log of one more failure: itself the first time, with the count the 10th, 100th, 1000th, else None."""
        kind = _NUMBER.sub("#", failure)
        self._count = self._count + 1 if kind == self._kind else 1
        self._kind = kind
        if self._count == 1:
            return failure
        is_told = self._count == 10 ** (len(str(self._count)) - 1)
        return f"{failure} (failure {self._count} of this kind in a row)" if is_told else None

    def over(self) -> int:
        """It went well. Returns how many failures of the last kind came before."""
        count, self._kind, self._count = self._count, None, 0
        return count
