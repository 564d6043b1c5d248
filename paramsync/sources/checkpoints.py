"""Checkpoints as a source: a store of ours, or a directory that a Saver, Checkpoint or CheckpointManager writes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Generic

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import ParamsyncError
from paramsync.inference.view import InMemory, R
from paramsync.sources import identity
from paramsync.sources.identity import VersionRecords
from paramsync.sources.mapped_versions import MappedVersion, MappedVersions
from paramsync.sources.source import (
    Bell,
    Build,
    GraphSpec,
    Look,
    Progress,
    ProgressCallback,
    Verification,
)
from paramsync.sources.verification import bring_in, is_untouched, verify, without_embeddings
from paramsync.sources.watch import Place, Watch, graph_places, store_places
from paramsync.store.store import Store
from paramsync.version import Candidate, Version


class CheckpointSource(Generic[R]):
    """See Source. `path` is the store."""

    def __init__(
        self,
        path: Path,
        build: Build[R],
        *,
        graph: Path | None = None,
        verification: Verification = "auto",
        answers_here: bool = True,
    ) -> None:
        """`graph` is the file of a graph, or the directory of a SavedModel, for versions that name none themselves.

        Where this process does not answer, others have the pages in their page tables, and here only checks read them.
        """
        self.path = path
        self._store = Store(path)
        self._records = VersionRecords(self._store)
        self._verification = verification
        self._answers_here = answers_here
        self._graph = graph
        self._build = build
        self._mapped = MappedVersions(path)

    def look(self) -> Look:
        try:
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
        files = self._records.files(version)
        return files if version.graph else (files, self._given_graph())

    def _given_graph(self) -> Hashable:
        """The identity of the graph that versions without one of their own have."""
        return None if self._graph is None else identity.of_graph(self._graph)

    def restore(self, version: Version, tell: ProgressCallback) -> R:
        graph = self._build.graph(version)
        tell(Progress("mapping"))
        bundle = self._store.open(version, find=self._mapped.finder())
        keys = self._build.keys(version, graph, bundle)
        resident, mapped = self._checked(version, graph, bundle, keys, tell)
        if version.checksum:  # without it all bytes are copied, and nothing but the tensors is to keep the copies
            self._mapped.add(mapped)
        return resident

    def _checked(
        self, version: Version, graph: GraphSpec, bundle: Bundle, keys: Sequence[str], tell: ProgressCallback
    ) -> tuple[R, MappedVersion]:
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
            bring_in(bundle, keys, needed if self._answers_here else (), tell)
        elif not trusted:
            known = self._mapped.verified(version, bundle, keys) if self._verification == "auto" else set()
            finite = not (version.finite and version.checksum)
            verify(bundle, [key for key in keys if key not in known], tell, finite=finite)
            bundle.check(known)
        resident = self._build.build(version, graph, bundle, keys)
        return resident, MappedVersion(version, weakref.ref(resident), bundle, needed, not trusted, untouched)

    def let_pages_go(self, idle: Sequence[InMemory]) -> None:
        self._mapped.evict(idle)

    def tend(self, used: Sequence[InMemory]) -> None:
        self._mapped.tend(used)

    def bell(self, ring: Callable[[], None]) -> Bell:
        return Watch(self.places, ring)

    def places(self) -> list[Place]:
        """The folders where news shows."""
        return [*store_places(self.path), *([] if self._graph is None else graph_places(self._graph))]
