"""Single versions of a bucket for a look at them, in a local store that lasts as long as the look."""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from paramsync.errors import RemoteError, UnknownVersionError
from paramsync.remote.bucket import Bucket, asked_once
from paramsync.remote.child import memory
from paramsync.remote.download import Download, read_manifest
from paramsync.remote.manifest import Manifest
from paramsync.remote.state import Listed
from paramsync.store.store import Store
from paramsync.version import Version

_PARALLEL = 8  # manifests and sizes that are asked for at once


class Excerpt:
    """The state of a bucket, and some of its versions in a local store in memory. A context manager, for one thread."""

    def __init__(self, address: str, *, keep: int = 1) -> None:
        """The local store has room for `keep` versions. Raises RemoteError if nothing is published there."""
        self.bucket = Bucket(address)
        self.address = self.bucket.address
        self.state = self.bucket.state()
        self._folder = tempfile.TemporaryDirectory(prefix="paramsync-excerpt-", dir=memory())
        path = Path(self._folder.name, "store")
        self._download = Download(self.bucket, path, keep=keep, stop=threading.Event())
        self.store = Store(path)
        self._size = cache(self.bucket.size)

    def __enter__(self) -> Excerpt:
        return self

    def __exit__(self, *error: object) -> None:
        self._download.close()
        self._folder.cleanup()

    def find(self, number: int | None) -> Listed:
        """The version with this number; None: the newest. Raises UnknownVersionError, RemoteError if there is none."""
        newest = self.state.newest
        if newest is None:
            raise RemoteError(f"{self.address}: nothing is published there yet")
        for listed in self.state.versions:
            if listed.number == (newest.number if number is None else number):
                return listed
        raise UnknownVersionError(self.address, number or 0, [listed.number for listed in self.state.versions])

    def manifests(self) -> list[Manifest | str]:
        """The manifest of each listed version, or what is wrong with the manifest."""

        def read(listed: Listed) -> Manifest | str:
            try:
                return read_manifest(self.bucket, listed)
            except FileNotFoundError as error:
                return f"{error} is gone"
            except RemoteError as error:
                return str(error)

        with asked_once(), ThreadPoolExecutor(_PARALLEL) as pool:
            return list(pool.map(read, self.state.versions))

    def problems(self, manifest: Manifest) -> list[str]:
        """What is wrong with the objects that a version may need: those that are gone, or have another size."""
        whole = manifest.whole
        sizes: dict[str, int | None] = {whole.name: whole.size, **{edge.name: edge.size for edge in manifest.edges}}
        if manifest.graph:
            sizes[manifest.graph] = None  # the graph has a checksum of its own

        def check(name: str) -> str | None:
            try:
                found = self._size(name)
            except FileNotFoundError:
                return f"{self.address}/{name} is gone"
            expected = sizes[name]
            return None if expected in (None, found) else f"{name}: expected {expected} bytes, found {found}"

        with asked_once(), ThreadPoolExecutor(_PARALLEL) as pool:
            return list(filter(None, pool.map(check, sizes)))

    def fetch(self, listed: Listed) -> Version:
        """Fetch a version into the local store. Versions come in ascending order. Raises RemoteError for damage."""
        try:
            with asked_once():
                return self._download.fetch(listed).version
        except FileNotFoundError as error:
            raise RemoteError(f"version {listed.number} lacks an object: {error}") from error
