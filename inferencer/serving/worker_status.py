"""The statuses of workers, for operators and metrics."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class WorkerState(enum.Enum):
    STARTING = "starting"
    ANSWERING = "answering"
    LEAVING = "leaving"
    """A successor has the worker's number; the worker still answers on its connections."""
    ENDED = "ended"
    """A successor is started soon."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The status of one process. While a worker is replaced, two processes have the same number."""

    number: int
    state: WorkerState
    since: float
    """In seconds since the epoch."""
    pid: int | None
    restarts: int
    """How often a process of this number has ended by itself."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A worker that was replaced, with the process ids before and after."""

    number: int
    before: int
    after: int
    seconds: float
