"""Fetches single versions of a bucket into a temporary local store, for commands that inspect them."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from crc32c import crc32c

from paramsync.checkpoint.tensor_bytes import PORTION
from paramsync.errors import RemoteError, UnknownVersionError
from paramsync.host.files import locked_folder
from paramsync.remote.bucket import PARALLEL, Bucket, asked_once
from paramsync.remote.download import Download, read_manifest
from paramsync.remote.manifest import Edge, Manifest, Whole
from paramsync.remote.state import Listed, State
from paramsync.remote.transfer import Transfer
from paramsync.store.store import Store

_folders: set[Path] = set()  # folders of open excerpts


def remove_all() -> None:
    """Remove the files of all excerpts, for a process that ends while another thread may still wait for a bucket."""
    for folder in _folders:
        shutil.rmtree(folder, ignore_errors=True)


class Excerpt:
    """A local store for versions of a bucket, in the folder for temporary files. A context manager for one thread."""

    def __init__(self, bucket: Bucket, *, keep: int = 1, folder: Path | None = None) -> None:
        """The local store has room for `keep` versions."""
        self._folder, self._lock = locked_folder("paramsync-fetched-", folder or Path(tempfile.gettempdir()))
        _folders.add(self._folder)
        path = self._folder / "store"
        self._download = Download(bucket, path, keep=keep, stop=threading.Event())
        self.store = Store(path)

    def __enter__(self) -> Excerpt:
        return self

    def __exit__(self, *error: object) -> None:
        self._download.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)
        _folders.discard(self._folder)

    def fetch(self, listed: Listed) -> Transfer:
        """Fetch a version into the local store. Call this in ascending order of versions. Raises RemoteError."""
        try:
            with asked_once():
                return self._download.fetch(listed)
        except FileNotFoundError as error:
            raise RemoteError(f"version {listed.number} lacks an object: {error}") from error
        except OSError as error:
            place = f"{error.filename or self._folder}: {error.strerror or error}"
            raise RemoteError(f"{place}: set TMPDIR to a folder with room for the version") from error


def find(bucket: Bucket, state: State, number: int | None, advice: str = "") -> Listed:
    """Return the version with this number, or the newest for None.

    Raises UnknownVersionError, which ends with the advice, and RemoteError if nothing is published yet.
    """
    newest = state.newest
    if newest is None:
        raise RemoteError(f"{bucket.address}: nothing is published there yet")
    for listed in state.versions:
        if listed.number == (newest.number if number is None else number):
            return listed
    known = [listed.number for listed in state.versions]
    raise UnknownVersionError(bucket.address, number or 0, known, advice=advice)


def read_manifests(bucket: Bucket, versions: Iterable[Listed]) -> dict[Listed, Manifest | str]:
    """Return the manifest of each version, or a text that says what is wrong with it."""

    def read(listed: Listed) -> Manifest | str:
        try:
            return read_manifest(bucket, listed)
        except FileNotFoundError as error:
            return f"{error} is gone"
        except RemoteError as error:
            return str(error)

    versions = list(versions)
    with asked_once(), ThreadPoolExecutor(PARALLEL) as pool:
        return dict(zip(versions, pool.map(read, versions), strict=True))


def objects_in(manifest: Manifest) -> dict[str, Whole | Edge | None]:
    """Return the objects that a version may need, by name. A graph is None: the manifest has only its name."""
    graphs: dict[str, Whole | Edge | None] = {manifest.graph: None} if manifest.graph else {}
    return {**graphs, manifest.whole.name: manifest.whole} | {edge.name: edge for edge in manifest.edges}


def faults(bucket: Bucket, objects: Mapping[str, Whole | Edge | None], versions: Collection[int]) -> dict[str, str]:
    """Return what is wrong with the objects that are missing or have another size, by name.

    Deltas that lead to one of these versions are read, and must have their checksum.
    """

    def check(name: str) -> str:
        known = objects[name]
        try:
            found = bucket.size(name)
            if known is None or found == known.size:
                return _damage(bucket, known) if isinstance(known, Edge) and known.number in versions else ""
        except FileNotFoundError:
            return f"{bucket.address}/{name} is gone"
        return f"{name}: expected {known.size} bytes, found {found}"

    with asked_once(), ThreadPoolExecutor(PARALLEL) as pool:
        checked = dict(zip(objects, pool.map(check, objects), strict=True))
    return {name: fault for name, fault in checked.items() if fault}


def _damage(bucket: Bucket, edge: Edge) -> str:
    """Return what is wrong with the bytes of a delta; "" also for a delta without a checksum."""
    crc = 0
    for start in range(0, edge.size, PORTION):
        crc = crc32c(bucket.get_range(edge.name, start, min(start + PORTION, edge.size)), crc)
    if edge.crc in ("", f"{crc:08x}"):
        return ""
    return f"{edge.name}: expected bytes with checksum {edge.crc}, found {crc:08x}"
