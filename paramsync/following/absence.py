"""Why a store has no version: what somebody who mistyped its path has to be told. Reads names of files only."""

from __future__ import annotations

from pathlib import Path

from paramsync.host import files
from paramsync.store import layout


def reason(store: Path) -> str:
    """In one line, with the path. The same until something else is the reason."""
    return f"{store}: {_why(store)}"


def _why(store: Path) -> str:
    try:
        names = files.names(store)
    except FileNotFoundError:
        nearest = next((one for one in store.absolute().parents if one.is_dir()), None)
        return "no such directory" if nearest is None else f"no such directory, {nearest} is there"
    except NotADirectoryError:
        return "no directory"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not names:
        return "the directory is empty"
    if layout.state_file(store).name in names:
        return "its `checkpoint` names no version"
    if layout.LOCK in names:
        return "its publisher has published nothing yet"
    return "no `checkpoint` in it, nor a SavedModel in a directory whose name is a number"
