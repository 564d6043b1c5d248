"""Why a version cannot be restored: whether it is to be waited for, whose fault it is, and how to tell it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from enum import Enum

from paramsync.errors import (
    CorruptCheckpointError,
    GraphError,
    ParamsyncError,
    StoreError,
    UnfinishedError,
    UnknownVersionError,
    UnreadableError,
    UntrustedError,
)
from paramsync.host import files
from paramsync.host.files import line


class Fault(Enum):
    UNFINISHED = "unfinished"  # its files are being written still, or so it seems
    ITS_OWN = "its own"  # it is the same at each look, until its files are others
    NOT_ITS_OWN = "not its own"  # it may be gone at the next look
    THE_MACHINES = "the machine's"  # no version is at fault: the same one may well be restored a moment later
    UNFORESEEN = "unforeseen"


_FAULTS: dict[type[BaseException], Fault] = {
    UnfinishedError: Fault.UNFINISHED,
    CorruptCheckpointError: Fault.ITS_OWN,
    GraphError: Fault.ITS_OWN,
    UntrustedError: Fault.ITS_OWN,
    UnknownVersionError: Fault.NOT_ITS_OWN,
    StoreError: Fault.NOT_ITS_OWN,
    OSError: Fault.NOT_ITS_OWN,
}
_THE_MACHINES = (UnreadableError, MemoryError)
_CODES_OF_THE_MACHINE = frozenset((4, 7, 8, 14))
"""Of TensorFlow's errors: a deadline, permission denied, memory or descriptors used up, unavailable."""


def fault_of(error: BaseException) -> Fault:
    """Whatever else it became on its way: what the machine could not do says nothing of a version."""
    if any(isinstance(cause, _THE_MACHINES) or _is_the_machines(cause) for cause in _causes(error)):
        return Fault.THE_MACHINES
    return next((_FAULTS[kind] for kind in type(error).__mro__ if kind in _FAULTS), Fault.UNFORESEEN)


def _is_the_machines(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return not files.is_of_the_file(error)
    return getattr(error, "error_code", None) in _CODES_OF_THE_MACHINE


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


def let_go(error: BaseException) -> None:
    """Free what was held where it was raised: files, memory.

    A variable of a function that refers to the error which the function raised keeps all of that until it is collected.
    """
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__


def told(error: Exception) -> str:
    """The error as one line for a person."""
    text = line(str(error))
    return text if isinstance(error, ParamsyncError) else f"{type(error).__name__}: {text}"
