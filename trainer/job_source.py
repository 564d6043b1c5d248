"""From MODULE:FUNCTION to a Job. Whatever is wrong with it is a SettingsError of one line."""

from __future__ import annotations

import inspect
import sys

from paramsync.errors import SettingsError
from paramsync.publishing.job import Job, JobFunction, JobSettings

from . import user_code
from .user_code import UserCodeError

DEFAULT = f"{__package__}.jobs.digits:job"


def find(source: str) -> JobFunction:
    """Import the module, which may be in the current directory, and take the function from it. Raises SettingsError."""
    try:
        function = user_code.load(source)
    except (SettingsError, UserCodeError) as error:
        raise _refused(source, str(error)) from error
    module, _, name = source.partition(":")
    if not callable(function):
        expected = f"expected a function {name!r} in {sys.modules[module].__file__}"
        raise _refused(source, f"{expected}, found {type(function).__name__} {name!r}")
    if not _takes_settings(function):
        expected = f"expected {name}(settings), a function of one argument"
        raise _refused(source, f"{expected}, found {name}{inspect.signature(function)}")
    return function  # type: ignore[no-any-return]  # `make` checks what it returns


def make(source: str, function: JobFunction, settings: JobSettings) -> Job:
    """Call it. Raises SettingsError where it fails, or returns something else; other errors of ours as they are."""
    try:
        job = user_code.call("it failed", function, settings)
    except (SettingsError, UserCodeError) as error:
        if source == DEFAULT and isinstance(error, SettingsError):
            raise
        raise _refused(source, str(error)) from error
    if not isinstance(job, Job):
        raise _refused(source, f"expected it to return a paramsync.Job, found {type(job).__name__}")
    return job


def _refused(source: str, problem: str) -> SettingsError:
    return SettingsError(f"--job {source}: {problem}")


def _takes_settings(function: JobFunction) -> bool:
    try:
        inspect.signature(function).bind(JobSettings())
    except TypeError:
        return False
    except ValueError:  # it has no signature that Python knows of
        return True
    return True
