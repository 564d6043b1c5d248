"""How far a version that is being brought in has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """`phase` is "mapping", "verifying" or "warming"; the totals are 0 until they are known."""

    phase: str
    _: KW_ONLY
    bytes_done: int = 0
    bytes_total: int = 0
    variables_done: int = 0
    variables_total: int = 0


Tell: TypeAlias = Callable[[Progress], None]
"""To be called now and then by whoever restores, from any thread. What it raises ends the restore, and is raised."""


def untold(progress: Progress) -> None:
    """For whoever does not want to know."""
