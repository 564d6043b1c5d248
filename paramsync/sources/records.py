"""Records: the versions that a store lists and what identifies their files, read again only where these changed."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from paramsync.errors import CorruptCheckpointError, UnreadableError
from paramsync.sources.identity import Listing
from paramsync.store.store import Store
from paramsync.version import Version


@dataclass(frozen=True)
class Found:
    """What one look found: the versions, ascending, and by number what `Records.files` says of them."""

    latest: Version | None
    versions: Sequence[Version]
    files: Mapping[int, Hashable] = field(repr=False)
    problem: Exception | None
    """Why there is no latest version, where there should be one."""


class Records:
    """Of one store. For one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, tuple[Hashable, Version]] = {}  # by prefix: the trace of the files, and what they say

    def look(self) -> Found:
        """Raises as `Store.versions` does."""
        listing: Listing | None = None
        traces: dict[str, Hashable] = {}

        def known(names: Collection[str]) -> dict[str, Version]:
            """Of the versions of these names those whose files are as they were at the last look."""
            nonlocal listing
            listing = Listing(self._store.path)
            traces.update((name, listing.trace(name)) for name in names)  # before anything is read that may change then
            seen = {name: self._seen[name] for name in names if name in self._seen}
            return {name: version for name, (trace, version) in seen.items() if trace == traces[name]}

        problem: Exception | None = None
        latest, versions = self._store.published(known)
        if latest is None:
            try:
                latest = self._store.latest()
            except (CorruptCheckpointError, UnreadableError) as error:  # older versions may be sound
                problem = error
            versions, listing = self._store.versions(), None
            traces.clear()
        listing = listing or Listing(self._store.path)
        self._seen = {one.prefix: (traces[one.prefix], one) for one in versions if one.prefix in traces}
        return Found(latest, versions, {one.number: self._files(one, listing) for one in versions}, problem)

    def files(self, version: Version) -> Hashable:
        """A value that is another one once any file of the version, or its graph, was replaced."""
        return self._files(version, Listing(self._store.path))

    def _files(self, version: Version, listing: Listing) -> Hashable:
        graph = listing.of_file(self._store.graph_file(version.graph).name) if version.graph else None
        return listing.of_checkpoint(version.prefix), graph
