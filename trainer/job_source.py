"""From MODULE:FUNCTION to a Job. Whatever is wrong with somebody else's module becomes one line that says where."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from pathlib import Path

from paramsync.errors import ParamsyncError, SettingsError
from paramsync.publishing.job import Job, JobFunction, JobSettings

DEFAULT = f"{__package__}.jobs.digits:job"

_LONG = 300  # characters of somebody else's message


def is_source(text: str) -> bool:
    """Whether it has the form MODULE:FUNCTION."""
    module, colon, function = text.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def find(source: str) -> JobFunction:
    """Import the module, which may be in the current directory, and take the function from it. Raises SettingsError."""
    name, _, attribute = source.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _refused(source, f"module {name} cannot be imported: {_told(error)}") from error
        problem = f"expected a module {name} in {here} or among what is installed, found no module {error.name!r}"
        raise _refused(source, problem) from error
    except (Exception, SystemExit) as error:
        raise _refused(source, f"module {name} cannot be imported: {_told(error)}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        has = "no such name" if function is None else f"{type(function).__name__} {attribute!r}"
        raise _refused(source, f"expected a function {attribute!r} in {module.__file__}, found {has}")
    if not _takes_one(function):
        expected = f"expected {attribute}(settings), a function of one argument, found"
        raise _refused(source, f"{expected} {attribute}{inspect.signature(function)}")
    return function  # type: ignore[no-any-return]  # what it returns is checked by `make`


def make(source: str, function: JobFunction, settings: JobSettings) -> Job:
    """Call it. Raises SettingsError where it fails, or returns something else; errors of ours as they are."""
    try:
        job = function(settings)
    except SettingsError as error:
        if source == DEFAULT:
            raise
        raise _refused(source, str(error)) from error
    except ParamsyncError:
        raise
    except (Exception, SystemExit) as error:
        raise _refused(source, f"it failed: {_told(error)}") from error
    if not isinstance(job, Job):
        raise _refused(source, f"expected it to return a paramsync.Job, found {type(job).__name__}")
    return job


def _refused(source: str, problem: str) -> SettingsError:
    return SettingsError(f"--job {source}: {problem}")


def _takes_one(function: JobFunction) -> bool:
    try:
        inspect.signature(function).bind(JobSettings())
    except TypeError:
        return False
    except ValueError:  # it has no signature that Python knows of
        return True
    return True


def _told(error: BaseException) -> str:
    """Its kind, its text in one line, and the deepest place outside of what is installed."""
    text = " ".join(str(error).split())
    told = f"{type(error).__name__}: {text[:_LONG]}" if text else type(error).__name__
    if isinstance(error, SyntaxError):  # says where by itself
        return told
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    own = [frame for frame in frames if "site-packages" not in frame.filename and frame.filename != __file__]
    own = [frame for frame in own if not frame.filename.startswith(str(Path(importlib.__file__).parent))]
    return f"{told} ({own[-1].filename}, line {own[-1].lineno})" if own else told
