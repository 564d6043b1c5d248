"""Finds versions that `checkpoint` lost because somebody else changed it, and those that it should lose."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from paramsync.errors import CorruptCheckpointError, StoreError, UnreadableError
from paramsync.host import files
from paramsync.store import layout
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import index_file
from paramsync.version import Version


def names(directory: Path, listed: Collection[str]) -> list[str]:
    """Our versions that are whole, not listed and not marked as rubbish, oldest first."""
    found = [name for name, version in _recorded(directory, listed) if _is_of_its_record(directory, name, version)]
    return sorted((name for name in found if index_file(directory / name).is_file()), key=layout.number_of)


def gone(directory: Path, listed: Collection[str]) -> set[str]:
    """The listed versions of which no file is there any more."""
    if not listed:
        return set()
    there = files.names(directory)
    begun = {file[:at] for file in there for at, letter in enumerate(file) if letter == "."}
    return set(listed) - begun - set(there)


def remains(directory: Path, listed: Collection[str]) -> list[Version]:
    """The records of versions whose index somebody removed, as a CheckpointManager does that takes them for its own."""
    return [version for name, version in _recorded(directory, listed) if not index_file(directory / name).exists()]


def record(directory: Path, name: str) -> Version | None:
    """The record of a version; None where it has none, or somebody else wrote a checkpoint of that name over ours.

    Raises as `layout.read_record` does, and UnreadableError where nobody can tell now.
    """
    found = layout.read_record(directory, name)
    if found is not None and found.checksum:
        try:
            entries = index.read(index_file(directory / name)).entries
        except CorruptCheckpointError:
            return found  # broken, but nobody else's
        if index.digest(entries) != found.checksum:
            return None
    return found


def _is_of_its_record(directory: Path, name: str, version: Version) -> bool:
    try:
        return record(directory, name) == version
    except UnreadableError:  # it stays as it is, whatever it is
        return False


def highest(directory: Path) -> int:
    """The highest number that a file of a version has, whatever became of the version; -1 where there is none."""
    return max((layout.number_of(file.partition(".")[0]) for file in _of_versions(files.names(directory))), default=-1)


def _recorded(directory: Path, listed: Collection[str]) -> Iterator[tuple[str, Version]]:
    found = files.names(directory)
    known = {*listed, *(layout.marked(directory / file) for file in found if layout.is_mark(file))}
    for file in _of_versions(found):
        name = file.removesuffix(".json")
        if name == file or name in known:
            continue
        try:
            version = layout.read_record(directory, name)
        except (CorruptCheckpointError, StoreError):
            continue
        if version is not None:
            yield name, version


def _of_versions(found: Collection[str]) -> Iterator[str]:
    return (file for file in found if file.startswith("ckpt-"))
