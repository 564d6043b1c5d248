"""Source: finds the published versions of a model, from any writer, and notices changes of their files."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeAlias

from paramsync.errors import CorruptCheckpointError, ParamsyncError, StoreError, UnfinishedError, UnreadableError
from paramsync.host import files
from paramsync.sources import diagnosis, saved_models
from paramsync.sources.watch import Watch, WatchedPlace, graph_places, numbered_places, store_places
from paramsync.store.store import LastPublisher, Store, last_publisher, read_state, state_file
from paramsync.version import Candidate, InMemory, R, R_co, Version

_OF_A_CHECKPOINT = re.compile(r"(?P<prefix>.+)\.(?:index|json|meta|data-\d+-of-\d+)")
_OF_A_SAVED_MODEL = ("", "variables", "assets")
_UNREAD = frozenset({"fingerprint.pb", "keras_metadata.pb"})  # files of a SavedModel written after `saved_model.pb`


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a restore is. `phase` is "mapping", "verifying" or "warming"; totals are 0 until they are known."""

    phase: str
    _: KW_ONLY
    bytes_done: int = 0
    bytes_total: int = 0
    variables_done: int = 0
    variables_total: int = 0


ProgressCallback: TypeAlias = Callable[[Progress], None]
"""Called repeatedly during a restore, from any thread. An exception that it raises ends the restore with this error."""


def _ignore_progress(progress: Progress) -> None:
    """The default callback, for callers that show no progress."""


Verification = Literal["auto", "checksums"]
"""Which checksums are computed before parameters serve.

"checksums": all. "auto": skips files in this machine's memory that nobody changed since our publisher wrote them, and
files that were verified for another version in memory.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of one look at the store.

    `published` is in ascending order; it is None if the store cannot be read. `publisher` is None if the store does not
    record its publisher, as in stores that TensorFlow wrote.
    """

    latest: Version | None = None
    published: list[Candidate] | None = None
    problem: Exception | None = None
    publisher: LastPublisher | None = None

    @property
    def numbers(self) -> list[int] | None:
        return None if self.published is None else [candidate.number for candidate in self.published]


class Bell(Protocol):
    """Calls a function when there may be a new version. Call `arm` before each look. One thread uses it."""

    def arm(self) -> None: ...
    def close(self) -> None: ...


class Restores(Protocol[R_co]):
    """Brings versions into memory, checked and ready to answer. One thread uses it.

    Raises CorruptCheckpointError, ParameterError, UnsafeGraphError, GraphError, UnknownVersionError, StoreError,
    OSError, UnfinishedError if the version's writer may not be done, and any error of `tell`.
    """

    def checkpoint(self, version: Version, tell: ProgressCallback) -> R_co: ...

    def saved_model(self, version: Version, directory: Path, tell: ProgressCallback) -> R_co: ...

    def damage(self, resident: InMemory) -> Exception | None:
        """Return how the bytes of a restored version differ from the published bytes; None if they do not differ."""


class Source(Generic[R]):
    """A directory of checkpoints or numbered SavedModels. It need not exist yet: each look detects its kind.

    Checkpoints come from our publisher, or from a Saver, Checkpoint or CheckpointManager. A SavedModel is a version
    once its `saved_model.pb` exists. It is served once this file is readable and the variables are complete, because
    tools copy the files of a directory in any order. The follower's thread uses a source; any thread may read `path`.
    """

    def __init__(
        self,
        path: Path,
        restores: Restores[R],
        *,
        graph: Path | None = None,
        options: str = "",
        signed: bool = False,
    ) -> None:
        """`graph` is a graph file, or the directory of a SavedModel, for checkpoints that name no graph.

        `options` is for errors: the names of the caller's options about the graph of checkpoints. If `signed`, only
        versions that a trusted key signed are restored, and a store that starts over with lower numbers is not
        followed.
        """
        self.signed = signed
        self.path = path
        self.restores = restores
        self._graph = graph
        self._options = options
        self._store = Store(path)
        # by prefix: the identity of a version's files, and its record
        self._seen: dict[str, tuple[Hashable, Version]] = {}
        self._is_numbered = False

    def look(self) -> Look:
        """Look at the published versions. Errors of files are returned, not raised."""
        if not self._is_numbered and (look := self._look_at_checkpoints()).latest is not None:
            return look  # there is a file `checkpoint`
        self._is_numbered = self._shows_numbers()
        if self._is_numbered and self._options:
            wrong = f"expected checkpoints, found numbered SavedModels, which say themselves what {self._options} would"
            return Look(problem=StoreError(self.path, f"{wrong}: leave that out"))
        look = self._look_at_saved_models() if self._is_numbered else self._look_at_checkpoints()
        if look.latest is None and look.problem is None and (misplaced := diagnosis.misplaced(self.path)):
            return replace(look, problem=StoreError(self.path, misplaced))
        return look

    def identity(self, version: Version) -> Hashable:
        """Return a value that identifies the version's files, as in `Look.published`.

        The value changes when the files are rewritten.
        """
        if self._is_numbered:
            return identify_saved_model(self.path / version.prefix)
        return self._identify(version, _Listing(self.path))

    def restore(self, version: Version, tell: ProgressCallback | None = None) -> R:
        """Bring a version into memory, checked and ready to answer. The serving version does not change.

        Raises the errors of Restores.
        """
        tell = tell or _ignore_progress
        if not self._is_numbered:
            return self.restores.checkpoint(version, tell)
        directory = self.path / version.prefix
        before = self.identity(version)
        try:
            resident = self.restores.saved_model(version, directory, tell)
        except (CorruptCheckpointError, FileNotFoundError) as error:  # the writer may not be done
            raise UnfinishedError(str(error)) from error
        if self.identity(version) != before:
            raise UnfinishedError(f"{directory}: expected files at rest, found some that changed while they were read")
        return resident

    def damage(self, resident: R) -> Exception | None:
        """Return how the bytes of a version in memory differ from the published bytes; None if they do not differ."""
        return self.restores.damage(resident)

    def bell(self, ring: Callable[[], None]) -> Bell:
        """Make a bell that calls `ring`, from any thread, when there may be a new version."""
        return Watch(self._places, ring)

    def _look_at_checkpoints(self) -> Look:
        try:
            latest, versions, listing, problem = self._read_versions()
        except (ParamsyncError, OSError) as error:
            return Look(problem=error)
        if latest is None and problem is not None and versions:
            latest = versions[-1]
        published = [
            Candidate(version, self._identify(version, listing))
            for version in versions
            if latest is not None and version.number <= latest.number
        ]
        ours = latest is None or bool(latest.checksum)
        publisher = last_publisher(self.path) if ours else None
        return Look(latest=latest, published=published, problem=problem, publisher=publisher)

    def _read_versions(self) -> tuple[Version | None, list[Version], _Listing, Exception | None]:
        """Return the latest version, all listed versions, the listing, and the error if the latest cannot be read.

        A record is read again only if a file of its version changed. Raises the errors of `Store.versions`.
        """
        state, listing = read_state(self.path), _Listing(self.path)
        # identify files before reading them, so that a change in between is noticed at the next look
        files = {name: listing.identify_checkpoint(name, with_links=True) for name in state.names} if state else {}
        known = {name: version for name, (before, version) in self._seen.items() if files.get(name) == before}
        versions = self._store.listed(state, known)
        latest = next((version for version in versions if state and version.prefix == state.latest), None)
        problem: Exception | None = None
        if latest is None:
            try:
                latest = self._store.latest()
            except (CorruptCheckpointError, UnreadableError) as error:  # older versions may be sound
                problem = error
            versions, listing, files = self._store.versions(), _Listing(self.path), {}
        self._seen = {
            version.prefix: (files[version.prefix], version) for version in versions if version.prefix in files
        }
        return latest, versions, listing, problem

    def _identify(self, version: Version, listing: _Listing) -> Hashable:
        graph = None
        if version.graph:
            graph = listing.identify_file(self._store.graph_file(version.graph).name)
        elif self._graph is not None:
            graph = identify_graph(self._graph)
        return listing.identify_checkpoint(version.prefix), graph

    def _look_at_saved_models(self) -> Look:
        try:
            versions = saved_models.versions(self.path)
        except OSError as error:
            problem = StoreError(self.path, f"cannot be read: {error.strerror}")
            problem.__cause__ = error  # the cause shows whether the file or the machine is at fault
            return Look(problem=problem)
        published = [Candidate(version, self.identity(version)) for version in versions]
        return Look(latest=versions[-1] if versions else None, published=published)

    def _shows_numbers(self) -> bool:
        """Return whether the directory has numbered SavedModels.

        For an empty or unreadable directory, returns the previous answer.
        """
        try:
            if state_file(self.path).exists():
                return False
            return bool(saved_models.numbered(self.path)) or self._is_numbered
        except OSError:
            return self._is_numbered

    def _places(self) -> list[WatchedPlace]:
        if self._shows_numbers():
            return numbered_places(self.path, saved_models.highest(self.path))
        return [*store_places(self.path), *([] if self._graph is None else graph_places(self._graph))]


def graph_options(graph: Path | None, inputs: Sequence[str]) -> str:
    """Return the names of the given options about the graph of checkpoints."""
    return "graph" if graph is not None else "inputs and outputs" if inputs else ""


class _Listing:
    """The files of a store at one moment, and values that identify them. A value changes when its file is replaced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: set[str] = set()
        self._of_checkpoints: defaultdict[str, list[str]] = defaultdict(list)
        self._facts: dict[str, os.stat_result | int] = {}  # by name: the facts of a file, or the number of an error
        with suppress(FileNotFoundError, NotADirectoryError):
            self._names.update(files.names(directory))
        for name in self._names:
            if match := _OF_A_CHECKPOINT.fullmatch(name):
                self._of_checkpoints[match["prefix"]].append(name)

    def identify_checkpoint(self, prefix: str, *, with_links: bool = False) -> Hashable:
        """Return a value that identifies a checkpoint's files, even if their times were set back.

        A later version may hard-link a data file. This changes no bytes, and changes the value only `with_links`.
        """
        facts = {name: self._facts_of(name) for name in self._of_checkpoints[prefix]}
        return frozenset(
            (name, _identity(file), getattr(file, "st_ctime_ns", 0) if with_links or ".data-" not in name else None)
            for name, file in facts.items()
        )

    def identify_file(self, name: str) -> Hashable | None:
        """Return a value that identifies a file; None if there is no such file."""
        return _identity(self._facts_of(name)) if name in self._names else None

    def _facts_of(self, name: str) -> os.stat_result | int:
        """Return the facts of a file. For a link, these are the facts of the link itself."""
        if name not in self._facts:
            self._facts[name] = _facts(self._directory / name, follow_symlinks=False)
        return self._facts[name]


def identify_saved_model(directory: Path) -> Hashable:
    """Return a value that changes when a file of the SavedModel is replaced or added."""
    return frozenset(file for folder in _OF_A_SAVED_MODEL for file in _files(directory, folder))


def identify_graph(path: Path) -> Hashable:
    """Return a value that changes when the graph file changes, or the SavedModel if the path is a directory."""
    facts = _facts(path)
    is_folder = not isinstance(facts, int) and stat.S_ISDIR(facts.st_mode)
    return identify_saved_model(path) if is_folder else _identity(facts)


def _files(directory: Path, folder: str) -> list[Hashable]:
    try:
        with files.beneath(directory, *([folder] if folder else [])) as descriptor, os.scandir(descriptor) as entries:
            counted = (entry for entry in entries if entry.name not in _UNREAD)
            there = [entry for entry in counted if not entry.is_dir(follow_symlinks=False)]
            return [(folder, entry.name, _identity(_facts(entry, follow_symlinks=False))) for entry in there]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except CorruptCheckpointError:  # links are not followed
        return [(folder, errno.ELOOP)]
    except OSError as error:
        return [(folder, error.errno)]


def _facts(file: Path | os.DirEntry[str], *, follow_symlinks: bool = True) -> os.stat_result | int:
    """Return the facts of a file, or the number of the error."""
    try:
        return file.stat(follow_symlinks=follow_symlinks)
    except OSError as error:
        return error.errno or errno.EIO


def _identity(facts: os.stat_result | int) -> Hashable:
    return facts if isinstance(facts, int) else (facts.st_ino, facts.st_size, facts.st_mtime_ns)
