"""Imports and calls code of other people. Whatever goes wrong in it becomes one line that says where."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from paramsync.errors import GraphError, ParamsyncError, SettingsError

Result = TypeVar("Result")

_LONG = 300  # characters of somebody else's message


class UserCodeError(GraphError):
    """A module or function of somebody else failed."""


def is_source(text: str) -> bool:
    """Whether it has the form MODULE:NAME; the name may be that of an attribute, A.B."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def load(source: str) -> Any:
    """What MODULE:NAME names. The module may be in the current directory.

    Raises SettingsError where it is not there, UserCodeError where importing it fails.
    """
    module_name, _, name = source.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise SettingsError(f"module {module_name} cannot be imported: {_told(error)}") from error
        places = f"in {here} or among what is installed"
        raise SettingsError(f"expected a module {module_name} {places}, found no module {error.name!r}") from error
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"module {module_name} cannot be imported: {_told(error)}") from error
    value = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise SettingsError(f"expected a function {name!r} in {module.__file__}, found no such name")
        value = getattr(value, part)
    return value


def call(problem: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """What the function returns. Raises UserCodeError where it fails, which begins with `problem`; our own errors pass
    as they are."""
    try:
        return function(*arguments)
    except ParamsyncError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"{problem}: {_told(error)}") from error


def _told(error: BaseException) -> str:
    """Its kind, its text in one line, and the deepest place outside of what is installed."""
    text = " ".join(str(error).split())
    told = f"{type(error).__name__}: {text[:_LONG]}" if text else type(error).__name__
    if isinstance(error, SyntaxError):  # says where by itself
        return told
    foreign = ("<frozen", __file__, str(Path(importlib.__file__).parent))
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith(foreign)
    ]
    return f"{told} ({own[-1].filename}, line {own[-1].lineno})" if own else told
