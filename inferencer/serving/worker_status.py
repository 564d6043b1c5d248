"""What the supervisor knows of the processes that answer, for operators and metrics."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class WorkerState(enum.Enum):
    STARTING = "starting"
    ANSWERING = "answering"
    LEAVING = "leaving"
    """Another one has its number, and it answers what still comes on its connections."""
    ENDED = "ended"
    """Another one is started soon."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """While a worker is replaced there are two of the same number."""

    number: int
    state: WorkerState
    since: float
    """Seconds since the epoch, as all times that leave the server."""
    pid: int | None
    restarts: int
    """How often a worker of this number has ended by itself."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A worker that another one took the place of, and the processes that they are."""

    number: int
    before: int
    after: int
    seconds: float
