"""Checkpoints as a source: a store of ours, or a directory that a Saver, Checkpoint or CheckpointManager writes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import ParamsyncError
from paramsync.graphs.graph import Graph
from paramsync.graphs.parameters import located, shared
from paramsync.host import yielding
from paramsync.host.gil_calls import Folder
from paramsync.inference.resident import Resident
from paramsync.sources import identity
from paramsync.sources.graphs import CheckpointGraphs
from paramsync.sources.identity import VersionRecords
from paramsync.sources.mapped_versions import MappedVersion, MappedVersions
from paramsync.sources.source import Bell, Look, Progress, ProgressCallback, Verification
from paramsync.sources.verification import bring_in, is_untouched, verify, without_embeddings
from paramsync.sources.watch import Place, Watch, graph_places, store_places
from paramsync.store.store import Store
from paramsync.version import Candidate, Version


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
        self._records = VersionRecords(self._store)
        self._verification = verification
        self._graph = graph
        self._graphs = CheckpointGraphs(self._store, inputs=inputs, outputs=outputs, graph=graph, allowed=allowed)
        self._mapped = MappedVersions(path, self._folder)

    def look(self) -> Look:
        try:
            with self._folder.promptly():
                found = self._records.look()
        except (ParamsyncError, OSError) as error:
            return Look(problem=error)
        latest, versions = found.latest, found.versions
        if latest is None and found.problem is not None and versions:
            latest = versions[-1]
        given = self._given_graph()
        published = [
            Candidate(one, found.files[one.number] if one.graph else (found.files[one.number], given))
            for one in versions
            if latest is not None and one.number <= latest.number
        ]
        return Look(latest=latest, published=published, problem=found.problem)

    def identity(self, version: Version) -> Hashable:
        with self._folder.promptly():
            files = self._records.files(version)
        return files if version.graph else (files, self._given_graph())

    def _given_graph(self) -> Hashable:
        """The identity of the graph that versions without one of their own have."""
        return None if self._graph is None else identity.of_graph(self._graph)

    def restore(self, version: Version, tell: ProgressCallback) -> Resident:
        graph = self._graphs.of(version)
        tell(Progress("mapping"))
        with self._folder.promptly():
            bundle = self._store.open(version, find=self._mapped.finder())
        self._mapped.opened(version)
        yielding.give()
        keys = located(graph, bundle, where=f"version {version.number}")
        resident, mapped = self._checked(version, graph, bundle, keys, tell)
        if version.checksum:  # without it all bytes are copied, and nothing but the tensors is to keep the copies
            self._mapped.add(mapped)
        return resident

    def _checked(
        self, version: Version, graph: Graph, bundle: Bundle, keys: Sequence[str], tell: ProgressCallback
    ) -> tuple[Resident, MappedVersion]:
        """Check what has to be checked; its pages are in the page table then, before the first request needs them.

        - What our publisher did not record is always verified by its checksums, and its values are looked at.
        - "sizes" believes our publisher: the index is checked against the graph and the sizes of the files, which takes
          as long for a large model as for a small one.
        - "auto" believes a seal which shows that nobody wrote to the files since our publisher looked at all values,
          and what was verified already for a version in memory with the same files.
        - Where the record says that the publisher looked at all values, matching checksums stand for them.
        """
        untouched = self._verification != "checksums" and is_untouched(version, bundle)
        needed = without_embeddings(graph, bundle, keys) if untouched else tuple(keys)
        trusted = self._verification == "sizes" and bool(version.checksum)
        if not trusted and untouched:
            bring_in(bundle, keys, needed, tell)
        elif not trusted:
            known = self._mapped.verified(version, bundle, keys) if self._verification == "auto" else set()
            finite = not (version.finite and version.checksum)
            verify(bundle, [key for key in keys if key not in known], tell, finite=finite)
            bundle.check(known)
        yielding.give()
        resident = Resident(version, graph, shared(bundle, keys))
        return resident, MappedVersion(version, weakref.ref(resident), bundle, needed, not trusted, untouched)

    def let_pages_go(self, idle: Sequence[Resident]) -> None:
        self._mapped.evict(idle)

    def tend(self, used: Sequence[Resident]) -> None:
        self._mapped.tend(used)

    def prepare(self, serving: Resident) -> bool:
        return self._mapped.prefetch(serving)

    def close(self) -> None:
        self._folder.close()
        self._mapped.close()

    def bell(self, ring: Callable[[], None]) -> Bell:
        return Watch(self.places, ring)

    def places(self) -> list[Place]:
        """The folders where news shows."""
        return [*store_places(self.path), *([] if self._graph is None else graph_places(self._graph))]
