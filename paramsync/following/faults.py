"""Classifies errors of a restore by whose fault they are; `policy` has the rule for each fault."""

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
    UNFINISHED = "unfinished"  # the files of the version seem to be still being written
    ITS_OWN = "its own"  # each restore fails in the same way until the version's files change
    NOT_ITS_OWN = "not its own"  # the error may be gone at the next look at the store
    THE_MACHINES = "the machine's"  # no version is at fault: the same restore may succeed a moment later
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
"""TensorFlow's codes of errors: deadline exceeded, permission denied, resource exhausted, unavailable."""


def fault_of(error: BaseException) -> Fault:
    """Return whose fault an error is: the machine's if any cause of the error is the machine's fault."""
    if any(isinstance(cause, _THE_MACHINES) or _is_the_machines(cause) for cause in _causes(error)):
        return Fault.THE_MACHINES
    return next((_FAULTS[kind] for kind in type(error).__mro__ if kind in _FAULTS), Fault.UNFORESEEN)


def _is_the_machines(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return not files.is_of_the_file(error)
    return getattr(error, "error_code", None) in _CODES_OF_THE_MACHINE


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def free_frames(error: BaseException) -> None:
    """Free the files and memory that an error's traceback refers to, before the garbage collector would."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__


def describe(error: Exception) -> str:
    """Return the error as one line of text for a person."""
    text = line(str(error))
    return text if isinstance(error, ParamsyncError) else f"{type(error).__name__}: {text}"
