"""Checkpoints as a source: a store of ours, or a directory that a Saver, Checkpoint or CheckpointManager writes."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paramsync import dtypes
from paramsync.checkpoint.data_file import FileRanges, FindMapped
from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.seal import FileId, FileStamp
from paramsync.errors import CorruptCheckpointError, ParamsyncError
from paramsync.graphs.graph import Graph
from paramsync.graphs.parameters import located, shared
from paramsync.host import parallel, yielding
from paramsync.host.gil_calls import Folder
from paramsync.inference.resident import Resident
from paramsync.sources import identity, places
from paramsync.sources.graphs import GivenGraphs
from paramsync.sources.progress import Progress, Tell
from paramsync.sources.records import Records
from paramsync.sources.source import Bell, Look, Verification
from paramsync.sources.watch import Place, Watch
from paramsync.store.prefetch import FilePrefetch
from paramsync.store.store import Store
from paramsync.version import Candidate, Version

_log = logging.getLogger("paramsync.sources")
_NO_NUMBERS = {dtypes.BOOL, dtypes.STRING, dtypes.VARIANT}
_LARGE = 4 << 20  # bytes of an embedding: a smaller one is brought in with what lies beside it
_TOLD = 64 << 20  # bytes that are checked at once; between them it is told how far that is, and may be given up
_THREADS = max(1, min(parallel.THREADS, parallel.PROCESSORS // 2))
"""What checks a version takes processors and the interpreter from what answers: `docs/performance.md` has figures."""


@dataclass(eq=False)
class _InMemory:
    """The files of a version in memory. `keys` name what requests are not to wait for, `brought_in` says whether that
    is in the page table. Files that are `untouched` are in this machine's memory."""

    version: Version
    resident: weakref.ref[Resident]
    bundle: Bundle
    keys: tuple[str, ...]
    brought_in: bool
    untouched: bool

    @cached_property
    def outlines(self) -> list[FileRanges]:
        return self.bundle.file_ranges(self.keys)

    def let_pages_go(self, but: Collection[FileId]) -> None:
        self.bundle.let_pages_go(but)
        self.brought_in = False


class CheckpointSource:
    """See Source. `path` is the store."""

    def __init__(
        self,
        path: Path,
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        graph: Path | None = None,
        verification: Verification = "auto",
        allowed: Collection[str] = (),
    ) -> None:
        """`inputs` and `outputs` name tensors ("x:0"): needed where a Saver wrote the store, unless `graph` is given.

        `graph` is the file of a graph, or the directory of a SavedModel, for versions that name none themselves.
        `allowed` names ops that a graph may use although they are not known to be safe.
        """
        self.path = path
        self._store = Store(path)
        self._folder = Folder(path)
        self._records = Records(self._store)
        self._verification = verification
        self._graph = graph
        self._graphs = GivenGraphs(self._store, inputs=inputs, outputs=outputs, graph=graph, allowed=allowed)
        self._in_memory: list[_InMemory] = []
        self._ahead = FilePrefetch(path)

    def look(self) -> Look:
        try:
            with self._folder.promptly():
                found = self._records.look()
        except (ParamsyncError, OSError) as error:
            return Look(problem=error)
        latest, versions = found.latest, found.versions
        if latest is None and found.problem is not None and versions:
            latest = versions[-1]
        given = self._given()
        published = [
            Candidate(one, found.files[one.number] if one.graph else (found.files[one.number], given))
            for one in versions
            if latest is not None and one.number <= latest.number
        ]
        return Look(latest=latest, published=published, problem=found.problem)

    def identity(self, version: Version) -> Hashable:
        with self._folder.promptly():
            files = self._records.files(version)
        return files if version.graph else (files, self._given())

    def _finder(self) -> FindMapped:
        """Gives a file that is mapped already: for a version in memory, which has it too, or ahead."""
        mapped = {trace: file for one in self._in_memory for trace, file in one.bundle.mapped_files.items()}
        return lambda found: mapped.get(FileStamp.of(found)) or self._ahead.take(found)

    def _given(self) -> Hashable:
        """What identifies the graph that was given, for versions that have none of their own."""
        return None if self._graph is None else identity.of_graph(self._graph)

    def restore(self, version: Version, tell: Tell) -> Resident:
        """With "sizes" the parameters are not touched: what the index says of them is checked against the graph and
        the files, and it takes as long for a large model as for a small one. Only our own publisher is believed so far:
        what has no record of it is always checked by its checksums. Where the record says that the publisher looked at
        all values, the checksums show that these are they, and the values are not looked at again; and where its seal
        shows that nobody has written to the files since, with "auto", the bytes are not, nor are those that `_verify`
        knows.
        """
        graph = self._graphs.of(version)
        tell(Progress("mapping"))
        with self._folder.promptly():
            bundle = self._store.open(version, find=self._finder())
        if all(version.number > one.version.number for one in self._in_memory):
            self._ahead.settle()
        else:  # nobody guessed where an older one is
            self._ahead.forget()
        yielding.give()
        keys = located(graph, bundle, where=f"version {version.number}")
        untouched = self._verification != "checksums" and _is_untouched(version, bundle)
        needed = _without_embeddings(graph, bundle, keys) if untouched else keys
        trusted = self._verification == "sizes" and bool(version.checksum)
        if not trusted:  # its pages are there, then, before the first request needs them
            if untouched:
                _bring_in(bundle, keys, needed, tell)
            else:
                self._verify(version, bundle, keys, tell)
        yielding.give()
        resident = Resident(version, graph, shared(bundle, keys))
        if version.checksum:  # else all of it is copied, and nothing but its tensors is to keep the copies
            self._in_memory.append(_InMemory(version, weakref.ref(resident), bundle, needed, not trusted, untouched))
        return resident

    def _verify(self, version: Version, bundle: Bundle, keys: Sequence[str], tell: Tell) -> None:
        """With "auto" not what was verified for a version in memory: the same files, held, not written to since.

        Where the kernel has dropped any of that, it would be read from the disk again, and is verified again.
        """
        finite = not (version.finite and version.checksum)
        proven: set[str] = set()
        for one in self._in_memory if self._verification == "auto" and version.checksum else ():
            is_enough = not finite or not one.version.finite  # the values were looked at
            common = not bundle.file_ids.isdisjoint(one.bundle.file_ids)
            if common and is_enough and one.brought_in and not one.untouched:
                both = set(one.keys).intersection(keys)
                proven.update(key for key in both if bundle.marks(key) == one.bundle.marks(key))
        if not bundle.is_present(proven):
            proven.clear()
        verify(bundle, [key for key in keys if key not in proven], tell, finite=finite)
        bundle.check(proven)

    def let_pages_go(self, idle: Sequence[Resident]) -> None:
        """Of mapped versions, whose bytes are in the store's files, which nobody changes while they are held."""
        kept = _files([one for one in self._in_memory if one.resident() not in idle])
        for one in self._in_memory:
            if one.resident() in idle:
                one.let_pages_go(kept)

    def tend(self, used: Sequence[Resident]) -> None:
        """Brings what serves into memory, where it was swapped in untouched or its pages were let go.

        Those of what serves no more are let go now, which leaves less to do before the next restore.
        """
        self._in_memory = [one for one in self._in_memory if one.resident() is not None]
        if not any(one.resident() in used for one in self._in_memory):
            self._ahead.forget()
        kept = _files([one for one in self._in_memory if one.resident() in used])
        for one in self._in_memory:
            if one.brought_in and one.resident() not in used:
                one.let_pages_go(kept)
        for one in self._in_memory:
            resident = one.resident()
            if resident is not None and resident in used and not one.brought_in:
                one.brought_in = True
                try:
                    one.bundle.prefault(one.keys)
                except CorruptCheckpointError as error:
                    number = one.version.number
                    _log.warning("%s: version %d was damaged after it was restored: %s", self.path, number, error)

    def prepare(self, serving: Resident) -> bool:
        """Of files in memory: those that the next version will likely be written into are brought into the page table.

        As if that version read as much of them as the one that serves.
        """
        if self._ahead.is_empty:
            like = [one for one in self._in_memory if one.resident() is serving and one.untouched and one.brought_in]
            others = _files([one for one in self._in_memory if one not in like])
            changed = [file for one in like for file in one.outlines if file.file_id not in others]
            held = others | _files(like)
            # Of a store that is gone, for a while perhaps, a look tells.
            with suppress(ParamsyncError, OSError), self._folder.promptly():
                self._ahead.expect(changed, held)
        return self._ahead.step()

    def close(self) -> None:
        self._folder.close()
        self._ahead.forget()

    def bell(self, ring: Callable[[], None]) -> Bell:
        return Watch(self.places, ring)

    def places(self) -> list[Place]:
        """Where something new shows."""
        return [*places.of_store(self.path), *([] if self._graph is None else places.of_graph(self._graph))]


def verify(bundle: Bundle, keys: Collection[str], tell: Tell, *, finite: bool = True) -> None:
    """Checksums and, with `finite`, values of these tensors. Raises CorruptCheckpointError, ParameterError."""
    _each("verifying", bundle, keys, tell, lambda names: bundle.verify(names, finite=finite, threads=_THREADS))


def _files(versions: Sequence[_InMemory]) -> set[FileId]:
    return {file for one in versions for file in one.bundle.file_ids}


def _is_untouched(version: Version, bundle: Bundle) -> bool:
    """Whether these are the bytes, and the values, that our publisher looked at."""
    return bool(version.checksum and version.finite and version.seal) and version.seal == bundle.seal


def _without_embeddings(graph: Graph, bundle: Bundle, keys: Sequence[str]) -> tuple[str, ...]:
    """Those of which requests read more than a few rows, which come as they are read: the files are in memory."""
    large = {
        key
        for spec, key in zip(graph.parameters, keys, strict=True)
        if spec.name in graph.embeddings and bundle.entries[key].size >= _LARGE
    }
    return tuple(key for key in keys if key not in large)


def _bring_in(bundle: Bundle, keys: Collection[str], needed: Collection[str], tell: Tell) -> None:
    """What is no number is looked at all the same: a publisher does not."""
    others = [key for key in keys if any(piece.dtype in _NO_NUMBERS for piece in bundle.entries[key].pieces)]
    if others:
        bundle.verify(others, threads=_THREADS)
    _each("mapping", bundle, needed, tell, bundle.prefault)
    bundle.check(set(keys).difference(needed))


def _each(phase: str, bundle: Bundle, keys: Collection[str], tell: Tell, work: Callable[[list[str]], None]) -> None:
    """Do that with the tensors, a portion at a time, and tell how far it is."""
    sizes = {key: bundle.entries[key].size for key in keys}
    done = Progress(phase, bytes_total=sum(sizes.values()), variables_total=len(sizes))
    tell(done)
    for names in _portions(sizes):
        work(names)
        done = Progress(
            phase,
            bytes_done=done.bytes_done + sum(sizes[name] for name in names),
            bytes_total=done.bytes_total,
            variables_done=done.variables_done + len(names),
            variables_total=done.variables_total,
        )
        tell(done)


def _portions(sizes: dict[str, int]) -> Iterator[list[str]]:
    names: list[str] = []
    size = 0
    for name, one in sizes.items():
        names.append(name)
        size += one
        if size >= _TOLD:
            yield names
            names, size = [], 0
    if names:
        yield names
