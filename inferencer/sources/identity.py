"""What identifies the files of a version, so that files written again are told from those already seen."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable
from pathlib import Path

from paramsync.store import Store
from paramsync.version import Version

_OF_A_CHECKPOINT = re.compile(r"(?P<prefix>.+)\.(?:index|json|meta|data-\d+-of-\d+)")
_OF_A_SAVED_MODEL = ("", "variables", "assets")
_UNREAD = frozenset({"fingerprint.pb", "keras_metadata.pb"})  # in a SavedModel; the first is written after the commit


def of_checkpoints(store: Store, versions: Iterable[Version]) -> dict[int, Hashable]:
    """For each version's number a value that is another one once any of its files, or its graph, was replaced."""
    wanted = {store.prefix(one).name: one for one in versions}
    graphs = {store.graph_file(one.graph).name: one.graph for one in wanted.values() if one.graph}
    of_prefix: defaultdict[str, set[Hashable]] = defaultdict(set)
    of_graph: dict[str, Hashable] = {}
    for entry in _entries(store.path):
        match = _OF_A_CHECKPOINT.fullmatch(entry.name)
        if match and match["prefix"] in wanted:
            of_prefix[match["prefix"]].add(_identity(entry))
        elif entry.name in graphs:
            of_graph[graphs[entry.name]] = _identity(entry)
    return {one.number: (frozenset(of_prefix[prefix]), of_graph.get(one.graph)) for prefix, one in wanted.items()}


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
