"""What identifies the files of a version, so that files written again are told from those already seen."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Hashable
from pathlib import Path

_OF_A_CHECKPOINT = re.compile(r"(?P<prefix>.+)\.(?:index|json|meta|data-\d+-of-\d+)")
_OF_A_SAVED_MODEL = ("", "variables", "assets")
_UNREAD = frozenset({"fingerprint.pb", "keras_metadata.pb"})  # in a SavedModel; the first is written after the commit


class Listing:
    """The files of a store, as they are now. What it says of some is another value once one of them was replaced."""

    def __init__(self, directory: Path) -> None:
        self._files: dict[str, os.DirEntry[str]] = {}
        self._of_checkpoints: defaultdict[str, list[os.DirEntry[str]]] = defaultdict(list)
        for entry in _entries(directory):
            self._files[entry.name] = entry
            if match := _OF_A_CHECKPOINT.fullmatch(entry.name):
                self._of_checkpoints[match["prefix"]].append(entry)

    def of_checkpoint(self, prefix: str) -> Hashable:
        return frozenset(map(_identity, self._of_checkpoints[prefix]))

    def trace(self, prefix: str) -> Hashable:
        """What changes with a checkpoint's files even where their times were put back. Links to them change it too."""
        return frozenset((_identity(one), _changed_at(one)) for one in self._of_checkpoints[prefix])

    def of_file(self, name: str) -> Hashable | None:
        """None where it is not there."""
        entry = self._files.get(name)
        return None if entry is None else _identity(entry)


def of_saved_model(directory: Path) -> Hashable:
    """A value that is another one once any file of the SavedModel that counts was replaced, or another one came."""
    return frozenset(found for folder in _OF_A_SAVED_MODEL for found in _files(directory, folder))


def _files(directory: Path, folder: str) -> list[Hashable]:
    try:
        found = _entries(directory / folder)
    except OSError as error:
        return [(folder, error.errno)]
    files = [one for one in found if one.name not in _UNREAD and not one.is_dir(follow_symlinks=False)]
    return [(folder, _identity(one)) for one in files]


def of_graph(path: Path) -> Hashable:
    """The same of a graph that was given: a file, or the directory of a SavedModel."""
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return of_saved_model(path) if path.is_dir() else (found.st_ino, found.st_size, found.st_mtime_ns)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _identity(entry: os.DirEntry[str]) -> Hashable:
    try:
        found = entry.stat(follow_symlinks=False)  # a link is refused wherever it leads: what counts is that it is one
    except OSError as error:
        return entry.name, error.errno
    return entry.name, found.st_ino, found.st_size, found.st_mtime_ns


def _changed_at(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_ctime_ns
    except OSError:
        return 0
