"""Identifies the files of versions, so that files written again are told from those already seen."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paramsync.errors import CorruptCheckpointError, UnreadableError
from paramsync.host import files
from paramsync.store.store import Store, read_state
from paramsync.version import Version

_OF_A_CHECKPOINT = re.compile(r"(?P<prefix>.+)\.(?:index|json|meta|data-\d+-of-\d+)")
_OF_A_SAVED_MODEL = ("", "variables", "assets")
_UNREAD = frozenset({"fingerprint.pb", "keras_metadata.pb"})  # in a SavedModel; the first is written after the commit


class StoreListing:
    """The files of a store now. A value that it gives is another one once one of the files was replaced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: set[str] = set()
        self._of_checkpoints: defaultdict[str, list[str]] = defaultdict(list)
        self._facts: dict[str, os.stat_result | int] = {}  # of files that were asked for, or the number of the error
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._names.update(files.names(directory))
        for name in self._names:
            if match := _OF_A_CHECKPOINT.fullmatch(name):
                self._of_checkpoints[match["prefix"]].append(name)

    def of_checkpoint(self, prefix: str) -> Hashable:
        """Data files may get new names, by which nothing else changes; other files keep the one that they have."""
        facts = {name: self._facts_of(name) for name in self._of_checkpoints[prefix]}
        return frozenset(
            (name, _identity(file), None if ".data-" in name else getattr(file, "st_ctime_ns", 0))
            for name, file in facts.items()
        )

    def trace(self, prefix: str) -> Hashable:
        """A value that changes with a checkpoint's files even where their times were put back, and with new links."""
        facts = {name: self._facts_of(name) for name in self._of_checkpoints[prefix]}
        return frozenset((name, _identity(file), getattr(file, "st_ctime_ns", 0)) for name, file in facts.items())

    def of_file(self, name: str) -> Hashable | None:
        """None where there is no such file."""
        return _identity(self._facts_of(name)) if name in self._names else None

    def _facts_of(self, name: str) -> os.stat_result | int:
        """Facts of a link, not of its target."""
        if name not in self._facts:
            self._facts[name] = _facts(self._directory / name, follow_symlinks=False)
        return self._facts[name]


def of_saved_model(directory: Path) -> Hashable:
    """A value that is another one once a file of the SavedModel that counts was replaced or added."""
    return frozenset(file for folder in _OF_A_SAVED_MODEL for file in _files(directory, folder))


def of_graph(path: Path) -> Hashable:
    """The same for a graph file, or the directory of a SavedModel."""
    facts = _facts(path)
    is_folder = not isinstance(facts, int) and stat.S_ISDIR(facts.st_mode)
    return of_saved_model(path) if is_folder else _identity(facts)


def _files(directory: Path, folder: str) -> list[Hashable]:
    try:
        with files.beneath(directory, *([folder] if folder else [])) as descriptor, os.scandir(descriptor) as entries:
            counted = (entry for entry in entries if entry.name not in _UNREAD)
            there = [entry for entry in counted if not entry.is_dir(follow_symlinks=False)]
            return [(folder, entry.name, _identity(_facts(entry, follow_symlinks=False))) for entry in there]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except CorruptCheckpointError:  # it is a link, which is not followed
        return [(folder, errno.ELOOP)]
    except OSError as error:
        return [(folder, error.errno)]


def _facts(file: Path | os.DirEntry[str], *, follow_symlinks: bool = True) -> os.stat_result | int:
    """Or the number of the error."""
    try:
        return file.stat(follow_symlinks=follow_symlinks)
    except OSError as error:
        return error.errno or errno.EIO


def _identity(facts: os.stat_result | int) -> Hashable:
    return facts if isinstance(facts, int) else (facts.st_ino, facts.st_size, facts.st_mtime_ns)


@dataclass(frozen=True)
class Listed:
    """The result of one look: the versions, ascending, and by number what `VersionRecords.files` says of them."""

    latest: Version | None
    versions: Sequence[Version]
    files: Mapping[int, Hashable] = field(repr=False)
    problem: Exception | None
    """Why there is no latest version, where there should be one."""


class VersionRecords:
    """The versions that a store lists, whose records are read again only where their files changed. For one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, tuple[Hashable, Version]] = {}  # by prefix: the trace of the files, and their record

    def look(self) -> Listed:
        """Raises as `Store.versions` does."""
        path = self._store.path
        problem: Exception | None = None
        state, listing = read_state(path), StoreListing(path)
        traces = {name: listing.trace(name) for name in state.names} if state else {}  # before their files are read
        known = {name: version for name, (trace, version) in self._seen.items() if traces.get(name) == trace}
        versions = self._store.listed(state, known)
        latest = next((version for version in versions if state and version.prefix == state.latest), None)
        if latest is None:
            try:
                latest = self._store.latest()
            except (CorruptCheckpointError, UnreadableError) as error:  # older versions may be sound
                problem = error
            versions, listing, traces = self._store.versions(), StoreListing(path), {}
        self._seen = {
            version.prefix: (traces[version.prefix], version) for version in versions if version.prefix in traces
        }
        files = {version.number: self._files(version, listing) for version in versions}
        return Listed(latest, versions, files, problem)

    def files(self, version: Version) -> Hashable:
        """A value that is another one once any file of the version, or its graph, was replaced."""
        return self._files(version, StoreListing(self._store.path))

    def _files(self, version: Version, listing: StoreListing) -> Hashable:
        graph = listing.of_file(self._store.graph_file(version.graph).name) if version.graph else None
        return listing.of_checkpoint(version.prefix), graph
