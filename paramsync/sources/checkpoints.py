"""Restores the versions of one store: verifies each version, maps each file only once, caches the graphs."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from paramsync import dtypes
from paramsync.checkpoint.data_file import FileStamp
from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.tensor_bytes import PROCESSORS, THREADS
from paramsync.errors import CorruptCheckpointError, GraphError, UnreadableError
from paramsync.graphs import specs
from paramsync.graphs.specs import Wanting
from paramsync.host import files
from paramsync.sources.source import Progress, ProgressCallback, Verification
from paramsync.store.signing import TrustedKeys, of_saved_model
from paramsync.store.store import Store
from paramsync.version import InMemory, R, Version

_log = logging.getLogger("paramsync.sources")
_NOT_NUMBERS = {dtypes.BOOL, dtypes.STRING, dtypes.VARIANT}
_LARGE = 4 << 20  # bytes: a smaller embedding is brought into memory whole, as all other tensors are
_PORTION = 64 << 20  # bytes that are checked at once; after each portion `tell` is called, which may end the restore
_THREADS = max(1, min(THREADS, PROCESSORS // 2))
"""Threads that check. They take processors, and the GIL, from threads that answer (see `docs/performance.md`)."""
_GRAPHS = 4  # graphs in the cache: for the current version, its predecessor and a few earlier versions


class GraphSpec(Wanting, Protocol):
    """The facts about a graph that are needed to check a checkpoint for it."""

    @property
    def embeddings(self) -> Collection[str]:
        """Names of parameters of which the graph only looks up rows."""


G = TypeVar("G", bound=GraphSpec)
Locate = Callable[..., tuple[str, ...]]
"""See `paramsync.graphs.specs.located`."""


class GraphCache(Generic[G]):
    """An LRU cache of graphs, for any thread. A key identifies everything that a graph was built from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._graphs: dict[Hashable, G] = {}  # the least recently used first

    def find(self, key: Hashable) -> G | None:
        with self._lock:
            graph = self._graphs.pop(key, None)
            if graph is not None:
                self._graphs[key] = graph
            return graph

    def keep(self, key: Hashable, graph: G) -> G:
        with self._lock:
            self._graphs[key] = graph
            while len(self._graphs) > _GRAPHS:
                del self._graphs[next(iter(self._graphs))]
        return graph

    def find_or_build(self, key: Hashable, build: Callable[[], G]) -> G:
        """Return the cached graph, or else the graph that `build` returns. `build` is called without the lock."""
        graph = self.find(key)
        return self.keep(key, build()) if graph is None else graph

    def all(self) -> list[G]:
        with self._lock:
            return list(self._graphs.values())

    def clear(self) -> None:
        with self._lock:
            self._graphs.clear()


@dataclass(frozen=True, eq=False)
class _Known:
    """A version in memory, and its checked tensors."""

    version: Version
    bundle: Bundle
    keys: tuple[str, ...]
    """The tensors that the graph uses."""
    verified: frozenset[str]
    """The tensors whose checksums were computed."""


class Checkpoints(ABC, Generic[G, R]):
    """Restores the versions of one store (see `Restores`). One thread uses it. Subclasses build graphs and versions.

    Tensors that our publisher wrote are not copied, except with `trust`: their bytes stay in the store's files, which
    nobody changes while they are locked.
    """

    answers_here = True
    """Whether this process answers requests.

    If not, this process reads pages only to check them, and its workers map the files.
    """

    def __init__(
        self,
        store: Store,
        *,
        locate: Locate = specs.located,
        verification: Verification = "auto",
        trust: TrustedKeys | None = None,
    ) -> None:
        """`locate` finds the keys of a graph's parameters in a bundle.

        With `trust` only versions that one of these keys signed are restored, from copies that nobody can change.
        """
        self.graphs: GraphCache[G] = GraphCache()
        self.store = store
        self.trust = trust
        self._locate = locate
        self._verification = verification
        self._known: WeakKeyDictionary[InMemory, _Known] = WeakKeyDictionary()
        self._damaged: set[FileStamp] = set()  # files whose bytes changed although their seals did not

    @abstractmethod
    def build_graph(self, content: bytes) -> tuple[G, str]:
        """Return the graph in a graph file, and its digest. Raises GraphError."""

    @abstractmethod
    def make_resident(self, version: Version, graph: G, bundle: Bundle, keys: Sequence[str]) -> R:
        """Return the version in memory, made from a bundle that was checked. Raises CorruptCheckpointError."""

    @abstractmethod
    def copy_unrecorded(self, version: Version, tell: ProgressCallback) -> R:
        """Bring into memory a version whose checkpoint names no graph, because another program wrote it."""

    @abstractmethod
    def copy_saved_model(self, version: Version, directory: Path, tell: ProgressCallback) -> R:
        """Bring this SavedModel into memory as a version."""

    @abstractmethod
    def warm(self, resident: R, tell: ProgressCallback) -> R:
        """Make the version ready for its first request. Returns the version."""

    def checkpoint(self, version: Version, tell: ProgressCallback) -> R:
        if self.trust is not None:
            self.trust.check_record(version)
        if not version.graph:
            return self.warm(self.copy_unrecorded(version, tell), tell)
        key = version.graph if self.trust is None else (version.graph, version.graph_file)
        graph = self.graphs.find_or_build(key, lambda: self._read_published(version))
        return self.warm(self.restore(version, graph, tell), tell)

    def saved_model(self, version: Version, directory: Path, tell: ProgressCallback) -> R:
        if self.trust is not None:
            raise of_saved_model(version)
        return self.warm(self.copy_saved_model(version, directory, tell), tell)

    def restore(self, version: Version, graph: G, tell: ProgressCallback) -> R:
        """Open a version, verify it for a graph, and bring it into memory. Raises the errors of Restores."""
        tell(Progress("mapping"))
        shared = {stamp: file for known in self._known.values() for stamp, file in known.bundle.mapped_files.items()}
        bundle = self.store.open(version, shared=shared, frozen=self.trust is not None)
        keys = self._locate(graph, bundle, where=f"version {version.number}")
        verified = self._check(version, graph, bundle, keys, tell)
        resident = self.make_resident(version, graph, bundle, keys)
        if version.checksum:  # without a record all bytes are copies, which the bundle would keep in memory
            self._known[resident] = _Known(version, bundle, tuple(keys), frozenset(verified))
        return resident

    def damage(self, resident: InMemory) -> CorruptCheckpointError | None:
        """Return how the bytes of a version in memory differ from the published bytes; None if they do not differ.

        Also returns None if the files cannot be read now, and for copies, which cannot be damaged.
        """
        known = self._known.get(resident)
        if known is None or self.trust is not None:
            return None
        try:
            for key in known.keys:
                deque(known.bundle.scrub(key), maxlen=0)
        except CorruptCheckpointError as error:
            self._damaged.update(known.bundle.mapped_files)
            del self._known[resident]  # its tensors no longer count as verified
            return error
        except UnreadableError as error:
            _log.debug("%s: cannot be scrubbed now: %s", known.bundle.prefix, error)
        return None

    def read_graph(self, path: Path) -> G:
        """Return the graph in a graph file. Raises GraphError, OSError."""
        return self._build(path, files.content(path, limit=files.MAX_MESSAGE))[0]

    def _read_published(self, version: Version) -> G:
        path = self.store.graph_file(version.graph)
        try:
            content = files.content(path, limit=files.MAX_MESSAGE)
        except FileNotFoundError as error:
            raise GraphError(needs(version, path)) from error
        if self.trust is not None:
            self.trust.check_graph(version, content, path)
        graph, digest = self._build(path, content)
        if digest != version.graph:
            raise GraphError(f"{path}: expected the graph {version.graph}, found {digest}")
        return graph

    def _build(self, path: Path, content: bytes) -> tuple[G, str]:
        try:
            return self.build_graph(content)
        except GraphError as error:
            raise type(error)(f"{path}: {error}") from error

    def _check(
        self, version: Version, graph: GraphSpec, bundle: Bundle, keys: Sequence[str], tell: ProgressCallback
    ) -> Collection[str]:
        """Check a version, and bring its pages into the page table before the first request needs them.

        - The checksums and values of a version that our publisher did not record are always checked.
        - "auto" skips files whose seal shows that nobody wrote to them since our publisher checked all values, and
          files that were verified already for a version in memory.
        - If the record says that the publisher checked all values, only checksums are checked, not values.
        - If only signed versions are trusted, the signed digests of all tensors are checked in place of checksums.

        Returns the tensors whose checksums were verified.
        """
        believed = self._damaged.isdisjoint(bundle.mapped_files)
        sealed = believed and bool(version.checksum and version.finite and version.seal) and version.seal == bundle.seal
        untouched = sealed and self._verification != "checksums"
        if self.trust is not None:
            done = 0

            def advance(count: int) -> None:  # called on several threads without a lock; `done` may be a bit too low
                nonlocal done
                done += count
                tell(Progress("verifying", bytes_done=done, bytes_total=version.bytes))

            self.trust.check_tensors(version, bundle, advance=advance, threads=_THREADS)
            untouched = version.finite
        if untouched:
            needed = _without_embeddings(graph, bundle, keys) if self.answers_here else ()
            _bring_in(bundle, keys, needed, tell)
            return ()
        known = self._verified_before(version, bundle, keys) if believed and self._verification == "auto" else set()
        finite = not (version.finite and version.checksum)
        verify(bundle, [key for key in keys if key not in known], tell, finite=finite)
        bundle.check(known)
        return keys

    def _verified_before(self, version: Version, bundle: Bundle, keys: Sequence[str]) -> set[str]:
        """Return the tensors that were verified for another version in memory and whose files are unchanged since.

        Returns no tensors if the kernel has dropped a page of any of them, because it would read the page from the disk
        again, unverified.
        """
        before: set[str] = set()
        for known in self._known.values():
            checked_values = version.finite or not known.version.finite
            shares = not bundle.mapped_files.keys().isdisjoint(known.bundle.mapped_files)
            if version.checksum and checked_values and shares:
                common = known.verified.intersection(keys)
                before.update(key for key in common if bundle.marks(key) == known.bundle.marks(key))
        return before if bundle.is_present(before) else set()


def needs(version: Version, path: Path) -> str:
    """Return the text of the error for a version whose graph file is missing."""
    return f"version {version.number} needs the graph file {path}, which is not there"


def _without_embeddings(graph: GraphSpec, bundle: Bundle, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the tensors that requests read whole.

    Requests read only rows of a large embedding, and the kernel loads these rows.
    """
    large = {
        key
        for spec, key in zip(graph.parameters, keys, strict=True)
        if spec.name in graph.embeddings and bundle.entries[key].size >= _LARGE
    }
    return tuple(key for key in keys if key not in large)


def verify(bundle: Bundle, keys: Collection[str], tell: ProgressCallback, *, finite: bool = True) -> None:
    """Check checksums and, with `finite`, values of these tensors. Raises CorruptCheckpointError, ParameterError."""
    _by_portions("verifying", bundle, keys, tell, lambda names: bundle.verify(names, finite=finite, threads=_THREADS))


def _bring_in(bundle: Bundle, keys: Collection[str], needed: Collection[str], tell: ProgressCallback) -> None:
    """Bring an unchanged version into the page table. Also check bools and strings, which publishers do not check."""
    others = [key for key in keys if any(piece.dtype in _NOT_NUMBERS for piece in bundle.entries[key].pieces)]
    if others:
        bundle.verify(others, threads=_THREADS)
    _by_portions("mapping", bundle, needed, tell, bundle.prefault)
    bundle.check(set(keys).difference(needed))


def _by_portions(
    phase: str, bundle: Bundle, keys: Collection[str], tell: ProgressCallback, work: Callable[[list[str]], Any]
) -> None:
    sizes = {key: bundle.entries[key].size for key in keys}
    bytes_total = sum(sizes.values())
    bytes_done = variables_done = 0
    for names in ([], *_portions(sizes)):
        if names:
            work(names)
        bytes_done += sum(sizes[name] for name in names)
        variables_done += len(names)
        tell(
            Progress(
                phase,
                bytes_done=bytes_done,
                bytes_total=bytes_total,
                variables_done=variables_done,
                variables_total=len(sizes),
            )
        )


def _portions(sizes: dict[str, int]) -> Iterator[list[str]]:
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        names.append(name)
        total += size
        if total >= _PORTION:
            yield names
            names, total = [], 0
    if names:
        yield names
