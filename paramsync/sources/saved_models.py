"""Numbered SavedModels as a source: BASE/<number>/saved_model.pb, as TensorFlow Serving follows them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Generic

from paramsync.errors import CorruptCheckpointError, StoreError, UnfinishedError
from paramsync.host import files
from paramsync.inference.view import InMemory, R
from paramsync.sources import identity
from paramsync.sources.source import Bell, Look, ProgressCallback
from paramsync.sources.watch import Place, Watch, numbered_places
from paramsync.version import Candidate, Version

_NUMBER = re.compile(r"[0-9]{1,18}")
COMMIT = "saved_model.pb"
AS_TEXT = "saved_model.pbtxt"  # makes a version as well, which cannot be used
_WATCHED = 2  # directories, of the highest numbers: a watch takes threads, and polling finds the rest


class SavedModelsSource(Generic[R]):
    """See Source. `path` is the directory with the numbered directories.

    A version exists once its `saved_model.pb` does. It is served once that can be read and its variables are whole,
    for tools copy a directory in an order of their own. Foreign graphs are code, so that only ops that are known to be
    safe, or `allowed`, are run; parameters are copied, and checked in full.
    """

    def __init__(self, path: Path, build: Callable[[Version, Path, ProgressCallback], R]) -> None:
        """`build` brings the version in a directory into memory; it raises as `restore` does."""
        self.path = path
        self._build = build

    def look(self) -> Look:
        closed: list[OSError] = []  # of each directory that cannot be looked into
        try:
            names = numbered(self.path)
            versions = [found for _, name in sorted(names.items()) if (found := self._version(name, closed))]
            if closed and len(closed) == len(versions):
                raise closed[0]
        except OSError as error:
            return Look(problem=StoreError(self.path, f"cannot be read: {error.strerror}"))
        published = [Candidate(one, self.identity(one)) for one in versions]
        return Look(latest=versions[-1] if versions else None, published=published)

    def _version(self, name: str, closed: list[OSError]) -> Version | None:
        try:
            written = committed(self.path / name)
        except NotADirectoryError:  # it was one a moment ago
            return None
        except OSError as error:  # one version cannot be read: its restore says so
            closed.append(error)
            written = 0.0
        if written is None:
            return None
        return Version(
            number=int(name),
            step=int(name),
            prefix=name,
            step_done_at=written,
            snapshot_at=written,
            committed_at=written,
            bytes=_size(self.path / name),
        )

    def identity(self, version: Version) -> Hashable:
        return identity.of_saved_model(self.path / version.prefix)

    def restore(self, version: Version, tell: ProgressCallback) -> R:
        directory = self.path / version.prefix
        before = self.identity(version)
        try:
            resident = self._build(version, directory, tell)
        except (CorruptCheckpointError, FileNotFoundError) as error:  # its writer may not be done
            raise UnfinishedError(str(error)) from error
        if self.identity(version) != before:
            raise UnfinishedError(f"{directory}: expected files at rest, found some that changed while they were read")
        return resident

    def let_pages_go(self, idle: Sequence[InMemory]) -> None:
        """Nothing can be evicted: all was copied."""

    def tend(self, used: Sequence[InMemory]) -> None:
        """Nothing is left to do: all was copied and looked at."""

    def bell(self, ring: Callable[[], None]) -> Bell:
        return Watch(self.places, ring)

    def places(self) -> list[Place]:
        """The folders where news shows."""
        return numbered_places(self.path, highest(self.path))


def numbered(path: Path) -> dict[int, str]:
    """The directories whose names are numbers, by number: 7, or 007. Raises OSError.

    Of several with one number the last in the order of names counts, as for TensorFlow Serving.
    """
    found = [one for one in _entries(path) if _NUMBER.fullmatch(one.name) and _is_directory(one)]
    return {int(one.name): one.name for one in sorted(found, key=lambda one: one.name)}


def highest(path: Path) -> list[Path]:
    """The directories of the highest numbers; the target of a link need not exist yet."""
    try:
        found = [one for one in _entries(path) if _NUMBER.fullmatch(one.name) and (one.is_symlink() or one.is_dir())]
        return [Path(one.path).resolve() for one in sorted(found, key=lambda one: int(one.name))[-_WATCHED:]]
    except (OSError, RuntimeError):  # the second, of a link to itself, up to Python 3.12
        return []


def committed(directory: Path) -> float | None:
    """When the SavedModel in a directory was written; None where there is none yet. Raises OSError."""
    found = next((one for one in _entries(directory) if one.name in (COMMIT, AS_TEXT)), None)
    try:
        return None if found is None else found.stat(follow_symlinks=False).st_mtime
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
    """Bytes of its variables, as far as they can be seen."""
    try:
        with files.beneath(directory, "variables") as descriptor, os.scandir(descriptor) as entries:
            return sum(one.stat(follow_symlinks=False).st_size for one in entries if ".data-" in one.name)
    except (OSError, CorruptCheckpointError):
        return 0


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return list(found)
    except FileNotFoundError:
        return []
