"""What identifies the files of a version, so that files written again are told from those already seen."""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Hashable
from pathlib import Path

from paramsync.errors import CorruptCheckpointError
from paramsync.host import beneath, files, kernel
from paramsync.host.kernel import Facts

_OF_A_CHECKPOINT = re.compile(r"(?P<prefix>.+)\.(?:index|json|meta|data-\d+-of-\d+)")
_OF_A_SAVED_MODEL = ("", "variables", "assets")
_UNREAD = frozenset({"fingerprint.pb", "keras_metadata.pb"})  # in a SavedModel; the first is written after the commit


class Listing:
    """The files of a store, as they are now. What it says of some is another value once one of them was replaced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._calls = kernel.of_directory(directory)
        self._names: set[str] = set()
        self._of_checkpoints: defaultdict[str, list[str]] = defaultdict(list)
        self._facts: dict[str, Facts | int] = {}  # of those that were asked for, or the number of the error
        for name in _names(directory):
            self._names.add(name)
            if match := _OF_A_CHECKPOINT.fullmatch(name):
                self._of_checkpoints[match["prefix"]].append(name)

    def of_checkpoint(self, prefix: str) -> Hashable:
        return frozenset(map(self._identity, self._of_checkpoints[prefix]))

    def trace(self, prefix: str) -> Hashable:
        """What changes with a checkpoint's files even where their times were put back. Links to them change it too."""
        return frozenset((self._identity(one), self._changed_at(one)) for one in self._of_checkpoints[prefix])

    def of_file(self, name: str) -> Hashable | None:
        """None where it is not there."""
        return self._identity(name) if name in self._names else None

    def _identity(self, name: str) -> Hashable:
        found = self._found(name)
        return (name, found) if isinstance(found, int) else (name, *_identity(found))

    def _changed_at(self, name: str) -> int:
        found = self._found(name)
        return 0 if isinstance(found, int) else found.st_ctime_ns

    def _found(self, name: str) -> Facts | int:
        """Of a link, wherever it leads: what counts is that it is one."""
        if name not in self._facts:
            try:
                self._facts[name] = self._calls.of_name(self._directory, name)
            except OSError as error:
                self._facts[name] = error.errno or errno.EIO
        return self._facts[name]


def of_saved_model(directory: Path) -> Hashable:
    """A value that is another one once any file of the SavedModel that counts was replaced, or another one came."""
    return frozenset(found for folder in _OF_A_SAVED_MODEL for found in _files(directory, folder))


def of_graph(path: Path) -> Hashable:
    """The same of a graph that was given: a file, or the directory of a SavedModel."""
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return of_saved_model(path) if path.is_dir() else _identity(found)


def _files(directory: Path, folder: str) -> list[Hashable]:
    try:
        with beneath.folder(directory, *([folder] if folder else [])) as descriptor, os.scandir(descriptor) as entries:
            files = [one for one in entries if one.name not in _UNREAD and not one.is_dir(follow_symlinks=False)]
            return [(folder, _of_entry(one)) for one in files]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except CorruptCheckpointError:  # it is a link, which is not followed
        return [(folder, errno.ELOOP)]
    except OSError as error:
        return [(folder, error.errno)]


def _of_entry(entry: os.DirEntry[str]) -> Hashable:
    try:
        return entry.name, *_identity(entry.stat(follow_symlinks=False))
    except OSError as error:
        return entry.name, error.errno


def _names(directory: Path) -> list[str]:
    try:
        return files.names(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _identity(found: Facts) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns
