"""Brings a local store up to a bucket: the newest version, by the cheapest way, checked before anybody sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from paramsync.checkpoint.reader import Bundle
from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError, EmptiedError, ParamsyncError, RemoteError
from paramsync.host import files
from paramsync.remote import manifest as manifests
from paramsync.remote import protocol, tensors
from paramsync.remote import state as states
from paramsync.remote.bucket import Bucket
from paramsync.remote.manifest import Edge, Manifest, Whole
from paramsync.remote.protocol import Answer
from paramsync.remote.state import Listed, State
from paramsync.remote.transfer import Transfer
from paramsync.store import store
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Index
from paramsync.version import Version

_FIRST_PAUSE, _LAST_PAUSE = 15.0, 600.0  # seconds until a version that came damaged is fetched again


class Download:
    """A follower's side of a bucket: writes nothing into it. One thread owns it."""

    def __init__(self, bucket: Bucket, path: Path, *, keep: int, stop: threading.Event) -> None:
        """The store at `path` is made and locked: nobody else may publish there. Raises StoreError."""
        self._bucket = bucket
        self._stop = stop
        self._store = Store(path)
        self._writer = StoreWriter(path, keep=keep)
        self._tag: str | None = None
        self._seen: State | None = None
        self._base: tuple[Version, Bundle] | None = None  # the last commit of this writer
        self._bad: set[str] = set()  # deltas that came damaged
        self._refused: tuple[int, float, float] | None = None  # the version that came damaged, when to retry, and pause
        self._gone = 0  # number of the last version that lacked an object

    def close(self) -> None:
        self._base = None
        self._writer.close()

    @property
    def state(self) -> State | None:
        """The last state that was seen."""
        return self._seen

    @property
    def newest(self) -> int | None:
        """The newest version in the bucket, as far as is known here."""
        newest = None if self._seen is None else self._seen.newest
        return None if newest is None else newest.number

    def run_once(self) -> Transfer | None:
        """Look at the state, and fetch the newest version if it is not here.

        Raises RemoteError for a state or a version that cannot be used, ConnectionError while the bucket is away, and
        errors of the local store. The next call tries again, if there is anything new.
        """
        found = self._bucket.read(self._tag)
        if found is Answer.UNKNOWN:
            raise ConnectionError(f"{self._bucket.address}: {self._bucket.last_error}")
        if isinstance(found, Answer):
            if self._seen is not None:
                raise EmptiedError
            return None
        if found is not None:
            self._look(states.from_json(found.content))
            self._tag = found.tag
        listed = None if self._seen is None else self._seen.wanted
        if listed is None or self._waits(listed):
            return None
        local = self._writer.latest()
        if local is not None and listed.number <= local.number:
            self._check_newest(local)
            return None
        try:
            return self._fetch(listed)
        except FileNotFoundError as error:  # collected meanwhile: the next state names a newer version
            self._tag = None
            if self._gone != listed.number:
                self._gone = listed.number
                return None
            self._refuse(listed)
            raise RemoteError(f"version {listed.number} lacks an object: {error}") from error
        except RemoteError:
            self._refuse(listed)
            raise

    def _check_newest(self, local: Version) -> None:
        """Raise RemoteError if the bucket is behind this copy, which may be from before a restart of this mirror."""
        if self.newest is not None and self.newest < local.number:
            found = f"version {local.number} here and version {self.newest} in the bucket"
            advice = f"remove {self._store.path} to follow the bucket from its beginning"
            raise RemoteError(f"the bucket has an older state, or another run: found {found}; {advice}")

    def _waits(self, listed: Listed) -> bool:
        """Whether this version came damaged a short time ago."""
        return self._refused is not None and self._refused[0] == listed.number and time.monotonic() < self._refused[1]

    def _refuse(self, listed: Listed) -> None:
        """Let a version that came damaged wait: damage on the way passes, damage in the bucket may be mended."""
        again = self._refused is not None and self._refused[0] == listed.number
        pause = min(2 * self._refused[2], _LAST_PAUSE) if again and self._refused is not None else _FIRST_PAUSE
        self._refused = listed.number, time.monotonic() + pause, pause
        self._bad = self._bad if not again else set()

    def _look(self, state: State) -> None:
        """Take note of a state. Raises RemoteError for one that must not be followed."""
        if self._seen is not None and state.run != self._seen.run:
            raise RemoteError(f"expected versions of run {self._seen.run}, found those of run {state.run}")
        if protocol.is_older(state, self._seen):
            raise RemoteError(f"{states.NAME}: somebody brought an older state back; ignored")
        self._seen = state

    def _fetch(self, listed: Listed) -> Transfer:
        begun = time.monotonic()
        content = self._bucket.get(listed.manifest, manifests.LIMIT)
        manifest = manifests.from_json(content, name=listed.manifest, digest=listed.digest)
        version = manifest.version()
        if version.number != listed.number:
            raise RemoteError(f"{listed.manifest}: expected version {listed.number}, found {version.number}")
        if version.prefix != f"ckpt-{version.number}" or store.problem(version):
            raise RemoteError(f"{listed.manifest}: expected a record that a store can have, found another")
        try:
            packed = index.decode(manifest.index, path=Path(listed.manifest))
        except CorruptCheckpointError as error:
            raise RemoteError(str(error)) from error
        if index.digest(packed.entries) != version.checksum:
            raise RemoteError(f"{listed.manifest}: expected the index of the record's version, found another")
        self._add_graph(version, manifest)
        problem: Exception = RemoteError("no deltas lead here from the whole version")
        for kind, edges in self._ways(manifest, version.number, tensors.size_of(packed)):
            try:
                contents, unchanged, moved = self._contents(kind, manifest.whole, packed, edges)
                self._commit(version, packed, contents, unchanged)
            except (ValueError, RemoteError, CorruptCheckpointError, FileNotFoundError) as error:
                problem = error
                self._bad.update(edge.name for edge in edges)
            else:
                seconds = time.monotonic() - begun
                return Transfer(version, moved, tensors.size_of(packed), kind, len(edges), seconds)
        if isinstance(problem, FileNotFoundError):
            raise problem
        raise RemoteError(f"version {listed.number} came damaged: {problem}")

    def _ways(self, manifest: Manifest, number: int, size: int) -> Iterator[tuple[str, tuple[Edge, ...]]]:
        """The ways to a version, the cheapest first, each without objects that came damaged before."""
        here = {version.number: version.checksum for version in self._store.versions()}
        fit = [edge for edge in manifest.edges if here.get(edge.base, edge.checksum) == edge.checksum]
        way = manifests.route([edge for edge in fit if edge.name not in self._bad], here, number, most=size)
        if way is not None:
            yield "delta", way
        sound = [edge for edge in manifest.edges if edge.name not in self._bad]
        way = manifests.route(sound, [manifest.whole.number], number, most=size + 1)
        if way is not None:
            yield "whole", way

    def _contents(
        self, kind: str, whole: Whole, packed: Index, edges: tuple[Edge, ...]
    ) -> tuple[Mapping[str, Array], frozenset[str], int]:
        """The bytes of the tensors, the names of tensors that the last commit has already, and the bytes received.

        Raises ValueError, RemoteError, CorruptCheckpointError for objects that do not fit the version.
        """
        own: set[str] = set()
        if kind == "whole":
            size = tensors.size_of(packed)
            if whole.size != size:
                raise ValueError(f"expected {size} bytes of a whole version, found {whole.size}")
            if (found := self._bucket.size(whole.name)) < size:  # before the memory is taken
                raise RemoteError(f"{whole.name}: expected {size} bytes, found {found}")
            content = np.empty(size, np.uint8)
            self._bucket.get_into(whole.name, content)
            contents = tensors.unpack(packed, content)
            own.update(contents)
        else:
            size = 0
            bundle = self._open(edges[0].base)
            if not tensors.alike(bundle.entries, packed.entries):
                raise ValueError("expected a version with the same tensors")
            contents = tensors.contents(bundle)
        for edge in edges:
            delta = self._bucket.get(edge.name, edge.size)
            try:
                contents = tensors.advance(packed.entries, contents, delta, own)
            except ValueError as error:
                raise RemoteError(f"{edge.name}: {error}") from error
        is_last = self._base is not None and bool(edges) and edges[0].base == self._base[0].number
        unchanged = frozenset(contents) - own if is_last else frozenset()
        return contents, unchanged, size + sum(edge.size for edge in edges)

    def _open(self, number: int) -> Bundle:
        if self._base is not None and self._base[0].number == number:
            return self._base[1]
        return self._store.open(self._store.find(number))

    def _add_graph(self, version: Version, manifest: Manifest) -> None:
        if not version.graph:
            return
        path = self._store.graph_file(version.graph)
        limit = files.MAX_MESSAGE
        content = files.content(path, limit=limit) if path.is_file() else b""
        if not store.has_checksum(content):
            content = self._bucket.get(manifest.graph, limit)
            if not store.has_checksum(content):
                raise RemoteError(f"{manifest.graph}: expected a graph with its checksum, found other bytes")
        self._writer.add_graph(version.graph, content)

    def _commit(
        self, version: Version, packed: Index, contents: Mapping[str, Array], unchanged: frozenset[str]
    ) -> None:
        values = {name: tensors.tensor(name, packed.entries[name], content) for name, content in contents.items()}
        self._writer.commit(version, values, unchanged=unchanged, recorded=True)
        try:
            self._base = version, self._store.open(version)
        except ParamsyncError:
            self._base = None
