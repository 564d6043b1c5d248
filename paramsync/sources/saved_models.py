"""The versions in a directory of numbered SavedModels: BASE/<number>/saved_model.pb, as for TensorFlow Serving."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from paramsync.errors import CorruptCheckpointError
from paramsync.host import files
from paramsync.version import Version

_NUMBER = re.compile(r"[0-9]{1,18}")
COMMIT = "saved_model.pb"
AS_TEXT = "saved_model.pbtxt"  # a directory with this file is a version, but the version cannot be restored
_WATCHED = 2  # how many directories to watch, beginning with the highest number: each takes threads


def versions(path: Path) -> list[Version]:
    """Return the versions in a directory, in ascending order.

    Raises OSError if the directory, or the directory of every version, cannot be read.
    """
    closed: list[OSError] = []  # an error for each directory that cannot be read
    names = sorted(numbered(path).items())
    versions_there = [version for _, name in names if (version := _version(path / name, closed)) is not None]
    if closed and len(closed) == len(versions_there):
        raise closed[0]
    return versions_there


def _version(directory: Path, closed: list[OSError]) -> Version | None:
    try:
        written = committed(directory)
    except NotADirectoryError:  # the path is no longer a directory
        return None
    except OSError as error:  # the version's restore reports the error
        closed.append(error)
        written = 0.0
    if written is None:
        return None
    number = int(directory.name)
    return Version(
        number=number,
        step=number,
        prefix=directory.name,
        step_done_at=written,
        snapshot_at=written,
        committed_at=written,
        bytes=_size(directory),
    )


def numbered(path: Path) -> dict[int, str]:
    """Return the names of directories that are numbers (7, or 007), by number. Raises OSError.

    If several names have the same number, the last of them in alphabetical order counts, as in TensorFlow Serving.
    """
    names = sorted(entry.name for entry in _entries(path) if _NUMBER.fullmatch(entry.name) and _is_directory(entry))
    return {int(name): name for name in names}


def highest(path: Path) -> list[Path]:
    """Return the directories of the highest numbers, with links resolved. The target of a link need not exist yet."""
    try:
        entries = [entry for entry in _entries(path) if _NUMBER.fullmatch(entry.name)]
        directories = [entry for entry in entries if entry.is_symlink() or entry.is_dir()]
        return [Path(entry.path).resolve() for entry in sorted(directories, key=lambda one: int(one.name))[-_WATCHED:]]
    except (OSError, RuntimeError):  # up to Python 3.12, a link to itself raises RuntimeError
        return []


def committed(directory: Path) -> float | None:
    """Return when the SavedModel in a directory was written; None if there is none yet. Raises OSError."""
    file = next((entry for entry in _entries(directory) if entry.name in (COMMIT, AS_TEXT)), None)
    try:
        return None if file is None else file.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return None


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def _size(directory: Path) -> int:
    """Return the bytes of the SavedModel's variables; 0 if they cannot be read."""
    try:
        with files.beneath(directory, "variables") as descriptor, os.scandir(descriptor) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries if ".data-" in entry.name)
    except (OSError, CorruptCheckpointError):
        return 0


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
