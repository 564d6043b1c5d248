"""Checkpoints: the versions of one store opened, verified and mapped, each file once, and a cache of their graphs."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from paramsync import dtypes
from paramsync.checkpoint.data_file import DataFile, FileStamp
from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.tensor_bytes import PROCESSORS, THREADS
from paramsync.errors import CorruptCheckpointError
from paramsync.graphs.specs import Wanting
from paramsync.sources.source import Progress, ProgressCallback, Verification
from paramsync.store.signing import TrustedKeys
from paramsync.store.store import Store
from paramsync.version import InMemory, R, Version

_log = logging.getLogger("paramsync.sources")
_NOT_NUMBERS = {dtypes.BOOL, dtypes.STRING, dtypes.VARIANT}
_LARGE = 4 << 20  # bytes of an embedding: a smaller one is brought in with what lies beside it
_PORTION = 64 << 20  # bytes that are checked at once; between portions progress is told, and a restore may be given up
_THREADS = max(1, min(THREADS, PROCESSORS // 2))
"""Checking takes processors, and the GIL, from threads that answer: `docs/performance.md` has figures."""


G = TypeVar("G")
_GRAPHS = 4  # cached: those of a version and its predecessor, and of some that were there before


class GraphCache(Generic[G]):
    """An LRU cache of graphs, by all that they were built from: versions with the same graph share it. Any thread."""

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
        """Returns the graph."""
        with self._lock:
            self._graphs[key] = graph
            while len(self._graphs) > _GRAPHS:
                del self._graphs[next(iter(self._graphs))]
        return graph

    def built(self, key: Hashable, build: Callable[[], G]) -> G:
        """The cached graph, or what `build` returns, which is called without the lock."""
        graph = self.find(key)
        return self.keep(key, build()) if graph is None else graph

    def graphs(self) -> list[G]:
        with self._lock:
            return list(self._graphs.values())

    def clear(self) -> None:
        with self._lock:
            self._graphs.clear()


class GraphSpec(Wanting, Protocol):
    """What has to be known of a graph to check a checkpoint for it."""

    @property
    def embeddings(self) -> Collection[str]:
        """Names of parameters of which it only looks up rows."""


Locate = Callable[..., tuple[str, ...]]
"""See `paramsync.graphs.specs.located`."""


@dataclass(frozen=True, eq=False)
class _Known:
    """What is known of a version in memory."""

    version: Version
    bundle: Bundle
    keys: tuple[str, ...]
    """The tensors that answers are computed from."""
    verified: frozenset[str]
    """The tensors whose checksums were computed."""


class Checkpoints(Generic[R]):
    """Restores the checkpoints of one store. One thread.

    The bytes stay in the store's files, which nobody changes while they are held.
    """

    def __init__(
        self,
        store: Store,
        locate: Locate,
        *,
        verification: Verification = "auto",
        answers_here: bool = True,
        trust: TrustedKeys | None = None,
    ) -> None:
        """`locate` finds the keys of a graph's parameters in a bundle.

        With `trust` only versions are restored that these keys signed, from copies that nobody can change.
        Where this process does not answer, others have the pages in their page tables, and here only checks read them.
        """
        self._store = store
        self._locate = locate
        self._verification = verification
        self._answers_here = answers_here
        self._trust = trust
        self._known: WeakKeyDictionary[InMemory, _Known] = WeakKeyDictionary()
        self._damaged: set[FileStamp] = set()  # files whose bytes changed without a trace: nothing else is believed

    def restore(
        self,
        version: Version,
        graph: GraphSpec,
        build: Callable[[Bundle, Sequence[str]], R],
        tell: ProgressCallback,
    ) -> R:
        """Open a version and verify it for a graph; `build` makes what it becomes in memory of its bundle and keys.

        Raises as Restores does.
        """
        if self._trust is not None:
            self._trust.check_record(version)
        tell(Progress("mapping"))
        mapped = {stamp: file for known in self._known.values() for stamp, file in known.bundle.mapped_files.items()}

        def find(facts: os.stat_result) -> DataFile | None:
            return mapped.get(FileStamp.of(facts))

        bundle = self._store.open(version, find=find, sealed=self._trust is not None)
        keys = self._locate(graph, bundle, where=f"version {version.number}")
        verified = self._check(version, graph, bundle, keys, tell)
        resident = build(bundle, keys)
        if version.checksum:  # without it all bytes are copied, and nothing but the tensors is to keep the copies
            self._known[resident] = _Known(version, bundle, tuple(keys), frozenset(verified))
        return resident

    def damage(self, resident: InMemory, descriptors: Sequence[int] = ()) -> CorruptCheckpointError | None:
        """Why a version in memory has other bytes by now than were published; None where it has not.

        None as well where nobody can tell now, and where the bytes are a copy.
        With the `descriptors` of a loan these are read, and a file that is cut meanwhile does not end this process.
        """
        known = self._known.get(resident)
        if known is None or self._trust is not None:
            return None
        try:
            if descriptors:
                for key in known.keys:
                    deque(known.bundle.examine(key, descriptors), maxlen=0)
            else:
                known.bundle.verify(known.keys, threads=_THREADS)
        except CorruptCheckpointError as error:
            self._damaged.update(known.bundle.mapped_files)
            del self._known[resident]  # nothing counts as verified for it
            return error
        except OSError as error:
            _log.debug("%s: cannot be examined now: %s", known.bundle.prefix, error)
        return None

    def _check(
        self, version: Version, graph: GraphSpec, bundle: Bundle, keys: Sequence[str], tell: ProgressCallback
    ) -> Collection[str]:
        """Check what has to be checked; its pages are in the page table then, before the first request needs them.

        - What our publisher did not record is always verified by its checksums, and its values are looked at.
        - "auto" believes a seal which shows that nobody wrote to the files since our publisher looked at all values,
          and what was verified already for a version in memory with the same files.
        - Where the record says that the publisher looked at all values, matching checksums stand for them.
        - Where only signed versions are trusted, all tensors must have the signed digests. These stand for checksums.

        Returns the tensors whose checksums match.
        """
        believed = self._damaged.isdisjoint(bundle.mapped_files)
        sealed = believed and bool(version.checksum and version.finite and version.seal) and version.seal == bundle.seal
        untouched = sealed and self._verification != "checksums"
        if self._trust is not None:
            done = 0

            def advance(count: int) -> None:  # on any thread: it may fall a little short
                nonlocal done
                done += count
                tell(Progress("verifying", bytes_done=done, bytes_total=version.bytes))

            self._trust.check_tensors(version, bundle, advance=advance, threads=_THREADS)
            untouched = version.finite
        needed = _without_embeddings(graph, bundle, keys) if untouched else tuple(keys)
        if not self._answers_here:
            needed = ()
        if untouched:
            _bring_in(bundle, keys, needed, tell)
            return ()
        known = self._verified_before(version, bundle, keys) if believed and self._verification == "auto" else set()
        finite = not (version.finite and version.checksum)
        verify(bundle, [key for key in keys if key not in known], tell, finite=finite)
        bundle.check(known)
        return keys

    def _verified_before(self, version: Version, bundle: Bundle, keys: Sequence[str]) -> set[str]:
        """The tensors verified for a version in memory which has the same files: held, and not written to since.

        None where the kernel has dropped any of them: they would be read from the disk again, and must be verified
        again.
        """
        before: set[str] = set()
        for known in self._known.values():
            looked_at_values = version.finite or not known.version.finite
            common = known.verified.intersection(keys)
            if version.checksum and looked_at_values and not bundle.file_ids.isdisjoint(known.bundle.file_ids):
                before.update(key for key in common if bundle.marks(key) == known.bundle.marks(key))
        return before if bundle.is_present(before) else set()


def _without_embeddings(graph: GraphSpec, bundle: Bundle, keys: Sequence[str]) -> tuple[str, ...]:
    """The tensors that requests read whole. Large embeddings in memory come as requests read rows of them."""
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
    """Bring an untouched version into the page table, and look at what is no number, as its publisher did not."""
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
