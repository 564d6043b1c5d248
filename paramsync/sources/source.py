"""Source: where the versions of a model come from, whatever wrote them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeAlias

from paramsync.errors import CorruptCheckpointError, ParamsyncError, StoreError, UnfinishedError
from paramsync.sources import diagnosis, identity, saved_models
from paramsync.sources.identity import VersionRecords
from paramsync.sources.watch import Watch, WatchedPlace, graph_places, numbered_places, store_places
from paramsync.store.store import LastPublisher, Store, last_publisher, state_file
from paramsync.version import Candidate, InMemory, R, R_co, Version


@dataclass(frozen=True, slots=True)
class Progress:
    """`phase` is "mapping", "verifying" or "warming"; the totals are 0 until they are known."""

    phase: str
    _: KW_ONLY
    bytes_done: int = 0
    bytes_total: int = 0
    variables_done: int = 0
    variables_total: int = 0


ProgressCallback: TypeAlias = Callable[[Progress], None]
"""Called now and then during a restore, from any thread. What it raises ends the restore, and is raised there."""


def _ignore_progress(progress: Progress) -> None:
    """The callback of callers that show no progress."""


Verification = Literal["auto", "checksums"]
"""Which checksums are computed before parameters serve.

"checksums": all. "auto": all but those of files in this machine's memory that are as our publisher left them, and of
files that were verified for another version in memory.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`published` ascends up to the latest; it is None where the store cannot be read. `publisher` is None where the
    store says nothing of one, as TensorFlow's do not."""

    latest: Version | None = None
    published: list[Candidate[Version]] | None = None
    problem: Exception | None = None
    publisher: LastPublisher | None = None

    @property
    def numbers(self) -> list[int] | None:
        return None if self.published is None else [candidate.number for candidate in self.published]


class Bell(Protocol):
    """Rings when there may be something new. One thread calls `arm` before each look, and `close`."""

    def arm(self) -> None: ...
    def close(self) -> None: ...


class Restores(Protocol[R_co]):
    """Brings versions into memory, checked and ready to answer. One thread uses it.

    Raises CorruptCheckpointError, ParameterError, UnsafeGraphError, GraphError, UnknownVersionError, StoreError,
    OSError, UnfinishedError where its writer may not be done, and what `tell` raises.
    """

    def checkpoint(self, version: Version, tell: ProgressCallback) -> R_co: ...

    def saved_model(self, version: Version, directory: Path, tell: ProgressCallback) -> R_co: ...

    def damage(self, resident: InMemory) -> Exception | None:
        """Why a version that it restored has other bytes by now than were published; None where it has not."""


class Source(Generic[R]):
    """A directory, which need not exist yet: it has checkpoints, or numbered SavedModels, as it shows at each look.

    Checkpoints are those of our publisher, or of a Saver, Checkpoint or CheckpointManager. A SavedModel is a version
    once its `saved_model.pb` is there, and served once that can be read and its variables are whole, for tools copy a
    directory in an order of their own. One thread uses a source, the follower's; `path` is for everybody.
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
        """`graph` is the file of a graph, or the directory of a SavedModel, for checkpoints that name none themselves.

        `options` names the options that were given about the graph of checkpoints. `signed` says that only versions
        are restored that a trusted key signed; then a store that starts over with lower numbers is not followed.
        """
        self.signed = signed
        self.path = path
        self.restores = restores
        self._graph = graph
        self._options = options
        self._records = VersionRecords(Store(path))
        self._is_numbered = False

    def look(self) -> Look:
        """What is published now. Errors that files cause are returned, not raised."""
        if not self._is_numbered and (look := self._checkpoints()).latest is not None:
            return look  # it has the file `checkpoint`
        self._is_numbered = self._shows_numbers()
        if self._is_numbered and self._options:
            wrong = f"expected checkpoints, found numbered SavedModels, which say themselves what {self._options} would"
            return Look(problem=StoreError(self.path, f"{wrong}: leave that out"))
        look = self._saved_models() if self._is_numbered else self._checkpoints()
        if look.latest is None and look.problem is None and (misplaced := diagnosis.misplaced(self.path)):
            return replace(look, problem=StoreError(self.path, misplaced))
        return look

    def identity(self, version: Version) -> Hashable:
        """A value that identifies the files of a version, as a look gives it: another one once they were rewritten."""
        if self._is_numbered:
            return identity.of_saved_model(self.path / version.prefix)
        return self._with_graph(version, self._records.files(version))

    def restore(self, version: Version, tell: ProgressCallback | None = None) -> R:
        """Bring a version into memory, checked and ready to answer; what serves does not change.

        Raises as Restores does.
        """
        tell = tell or _ignore_progress
        if not self._is_numbered:
            return self.restores.checkpoint(version, tell)
        directory = self.path / version.prefix
        before = self.identity(version)
        try:
            resident = self.restores.saved_model(version, directory, tell)
        except (CorruptCheckpointError, FileNotFoundError) as error:  # its writer may not be done
            raise UnfinishedError(str(error)) from error
        if self.identity(version) != before:
            raise UnfinishedError(f"{directory}: expected files at rest, found some that changed while they were read")
        return resident

    def damage(self, resident: R) -> Exception | None:
        """Why a version in memory has other bytes by now than were published; None where it has not."""
        return self.restores.damage(resident)

    def bell(self, ring: Callable[[], None]) -> Bell:
        """A bell for what is published here. It calls `ring` from any thread."""
        return Watch(self._places, ring)

    def _checkpoints(self) -> Look:
        try:
            listed = self._records.look()
        except (ParamsyncError, OSError) as error:
            return Look(problem=error)
        latest, versions = listed.latest, listed.versions
        if latest is None and listed.problem is not None and versions:
            latest = versions[-1]
        published = [
            Candidate(version, self._with_graph(version, listed.files[version.number]))
            for version in versions
            if latest is not None and version.number <= latest.number
        ]
        ours = latest is None or bool(latest.checksum)
        publisher = last_publisher(self.path) if ours else None
        return Look(latest=latest, published=published, problem=listed.problem, publisher=publisher)

    def _saved_models(self) -> Look:
        try:
            versions = saved_models.versions(self.path)
        except OSError as error:
            problem = StoreError(self.path, f"cannot be read: {error.strerror}")
            problem.__cause__ = error  # which says whose fault it is
            return Look(problem=problem)
        published = [Candidate(version, self.identity(version)) for version in versions]
        return Look(latest=versions[-1] if versions else None, published=published)

    def _with_graph(self, version: Version, files: Hashable) -> Hashable:
        if version.graph:
            return files
        return files, None if self._graph is None else identity.of_graph(self._graph)

    def _shows_numbers(self) -> bool:
        """Whether it holds numbered SavedModels; what it held before where it shows nothing."""
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
    """Which options about the graph of checkpoints were given."""
    return "graph" if graph is not None else "inputs and outputs" if inputs else ""
