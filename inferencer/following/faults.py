"""Why a version cannot be restored: whether it is to be waited for, whose fault it is, and how to tell it."""

from __future__ import annotations

from enum import Enum

from paramsync.errors import (
    CorruptCheckpointError,
    GraphError,
    ParamsyncError,
    StoreError,
    UnfinishedError,
    UnknownVersionError,
)
from paramsync.terminal import line


class Fault(Enum):
    UNFINISHED = "unfinished"  # its files are being written still, or so it seems
    ITS_OWN = "its own"  # it is the same at each look, until its files are others
    NOT_ITS_OWN = "not its own"  # it may be gone at the next look
    UNFORESEEN = "unforeseen"


_FAULTS: dict[type[BaseException], Fault] = {
    UnfinishedError: Fault.UNFINISHED,
    CorruptCheckpointError: Fault.ITS_OWN,
    GraphError: Fault.ITS_OWN,
    UnknownVersionError: Fault.NOT_ITS_OWN,
    StoreError: Fault.NOT_ITS_OWN,
    OSError: Fault.NOT_ITS_OWN,
    MemoryError: Fault.NOT_ITS_OWN,
}


def fault_of(error: Exception) -> Fault:
    return next((_FAULTS[kind] for kind in type(error).__mro__ if kind in _FAULTS), Fault.UNFORESEEN)


def told(error: Exception) -> str:
    """The error as one line for a person."""
    text = line(str(error))
    return text if isinstance(error, ParamsyncError) else f"{type(error).__name__}: {text}"
