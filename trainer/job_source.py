"""Finds and calls functions of users, such as the job of `--job`. Describes each error, with its place, in one line."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from paramsync.errors import GraphError, ParamsyncError, SettingsError
from paramsync.publishing.job import Job, JobFunction, JobSettings

DEFAULT = f"{__package__}.jobs.digits:job"
Result = TypeVar("Result")

_LONG = 300  # most characters of a user's error; the rest is cut


class UserCodeError(GraphError):
    """A module or function of the user raised an error."""


def is_source(text: str) -> bool:
    """Whether the text has the form MODULE:NAME. NAME may be the path of an attribute, such as A.B."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def load(source: str) -> Any:
    """Import the object MODULE:NAME. The module may be in the current directory.

    Raises SettingsError if there is no such object, UserCodeError if the import fails.
    """
    module_name, _, name = source.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise SettingsError(f"module {module_name} cannot be imported: {_one_line(error)}") from error
        places = f"in {here} or among what is installed"
        raise SettingsError(f"expected a module {module_name} {places}, found no module {error.name!r}") from error
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"module {module_name} cannot be imported: {_one_line(error)}") from error
    value = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise SettingsError(f"expected a function {name!r} in {module.__file__}, found no such name")
        value = getattr(value, part)
    return value


def call(problem: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call the function. An error becomes a UserCodeError whose text begins with `problem`. ParamsyncErrors pass
    unchanged."""
    try:
        return function(*arguments)
    except ParamsyncError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"{problem}: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    """Return the error's type and text, and the deepest line of the user's own code, in one line."""
    text = " ".join(str(error).split())
    said = f"{type(error).__name__}: {text[:_LONG]}" if text else type(error).__name__
    if isinstance(error, SyntaxError):  # the text of a SyntaxError has the place
        return said
    foreign = ("<frozen", __file__, str(Path(importlib.__file__).parent))
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith(foreign)
    ]
    return f"{said} ({own[-1].filename}, line {own[-1].lineno})" if own else said


def find(source: str) -> JobFunction:
    """Find the function of `--job MODULE:FUNCTION`. Raises SettingsError."""
    try:
        function = load(source)
    except (SettingsError, UserCodeError) as error:
        raise _refused(source, str(error)) from error
    module, _, name = source.partition(":")
    if not callable(function):
        expected = f"expected a function {name!r} in {sys.modules[module].__file__}"
        raise _refused(source, f"{expected}, found {type(function).__name__} {name!r}")
    return function  # type: ignore[no-any-return]  # `make` checks what it returns


def make(source: str, function: JobFunction, settings: JobSettings) -> Job:
    """Call the function. Raises SettingsError if it fails or returns no Job. Other ParamsyncErrors pass unchanged."""
    try:
        job = call("it failed", function, settings)
    except (SettingsError, UserCodeError) as error:
        if source == DEFAULT and isinstance(error, SettingsError):
            raise
        raise _refused(source, str(error)) from error
    if not isinstance(job, Job):
        raise _refused(source, f"expected it to return a paramsync.Job, found {type(job).__name__}")
    return job


def _refused(source: str, problem: str) -> SettingsError:
    return SettingsError(f"--job {source}: {problem}")
