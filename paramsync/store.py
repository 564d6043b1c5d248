"""The directory where publisher and followers meet: what is published, which is the latest, what may go."""

from __future__ import annotations

import glob
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from paramsync import files, layout, lock, shards
from paramsync.bundle import Array, Bundle
from paramsync.errors import CorruptCheckpointError, SettingsError, StoreError, UnknownVersionError
from paramsync.index import index_file
from paramsync.version import Version

_LOOKS = 10  # how often `latest` follows a state file that is replaced faster than it can be followed

_log = logging.getLogger("paramsync.store")


class Store:
    """A follower's view of a store. Holds no open file and no state: any number of them, used from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def latest(self) -> Version | None:
        """What `checkpoint` names; None where nothing was published yet, not even the directory made.

        Raises StoreError for a path that cannot be read, CorruptCheckpointError where `checkpoint`, or the record it
        leads to, is broken, or the files it names are not there.
        """
        state = layout.read_state(self.path)
        for _ in range(_LOOKS):
            if state is None:
                return None
            version = self._version(state.latest)
            if version is not None:
                return version
            seen, state = state, layout.read_state(self.path)
            if state == seen:  # else what it named was pruned after it was read
                break
        expected = f"the files of {seen.latest}"
        raise CorruptCheckpointError(layout.state_file(self.path), expected=expected, found="no such files")

    def versions(self) -> list[Version]:
        """All versions that `checkpoint` lists and whose files are there, ascending.

        One with a broken record is left out, so that it hides no other. Raises as `latest` does where `checkpoint`
        itself is broken.
        """
        state = layout.read_state(self.path)
        found = {}
        for name in state.names if state else ():
            try:
                version = self._version(name)
            except CorruptCheckpointError:
                continue
            if version is not None:
                found[version.number] = version
        return [found[number] for number in sorted(found)]

    def find(self, number: int) -> Version:
        """The version of that number. Raises UnknownVersionError, which lists those that are there."""
        versions = {version.number: version for version in self.versions()}
        if number not in versions:
            raise UnknownVersionError(str(self.path), number, versions)
        return versions[number]

    def open(self, version: Version) -> Bundle:
        """Map a version's parameters.

        Raises CorruptCheckpointError where its files are not a whole checkpoint, UnknownVersionError where it was
        pruned after the caller learned of it.
        """
        try:
            return Bundle.open(self.prefix(version))
        except CorruptCheckpointError as error:
            state = layout.read_state(self.path)
            if state is None or version.prefix not in state.names:
                known = [one.number for one in self.versions()]
                raise UnknownVersionError(str(self.path), version.number, known) from error
            raise

    def prefix(self, version: Version) -> Path:
        """What the names of a version's files begin with. Raises StoreError where it would lie outside the store."""
        if not layout.is_name(version.prefix):
            raise StoreError(self.path, f"expected a prefix in this directory, found {files.shown(version.prefix)}")
        return self.path / version.prefix

    def graph_file(self, digest: str) -> Path:
        """Where the graph of that digest is, if it is there. Raises StoreError for what is no digest."""
        if not layout.is_digest(digest):
            raise StoreError(self.path, f"expected the hexadecimal digest of a graph, found {files.shown(digest)}")
        return layout.graph_file(self.path, digest)

    def _version(self, name: str) -> Version | None:
        """The version of that name, None when its files are not there."""
        # The record is read first: pruning takes the index away first, so that a record missing beside an index that
        # is still there afterwards can only mean that there never was one.
        record = layout.read_record(self.path, name)
        listing = index_file(self.path / name)
        try:
            with files.regular(listing) as file:
                written = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(self.path, f"{listing.name} cannot be read: {error.strerror}") from error
        return record or layout.unrecorded(name, written)


class StoreWriter:
    """The one publisher's side of a store, which it makes and locks.

    One thread owns it; `next_number` alone may be called from another. A version is published in these steps, and a
    publisher that is killed between any two of them leaves the version before as the latest, and its rubbish marked:

    1. mark the new version, and those that it will push out, as unlisted;
    2. data, index and record, each under its name when complete;
    3. `checkpoint`, by rename: the new version is visible, and the only one that is the latest;
    4. of every marked version that `checkpoint` does not list: remove the index, the record, the data, then the graph
       that no other version has, then the mark.

    Versions without a record are TensorFlow's: they stay listed and are never removed.
    """

    def __init__(self, path: Path, *, keep: int = 5) -> None:
        """Make and lock the store, and clear away what a killed publisher left.

        Raises SettingsError, StoreLockedError, StoreError, and CorruptCheckpointError where `checkpoint` is broken.
        """
        if keep < 1:
            raise SettingsError(f"keep: expected at least 1 version, found {keep}")
        self._store = Store(path)
        self._path = path
        self._keep = keep
        self._numbers = threading.Lock()
        self._fresh_graphs: set[str] = set()  # added, and not yet in a version
        with self._faults("cannot be made a store"):
            if path.is_file():
                raise StoreError(path, "expected a directory, found a file")
            path.mkdir(parents=True, exist_ok=True)
            self._lock: int | None = lock.take(path)
        try:
            self._reserved = max(map(layout.number_of, self._listed()), default=-1)
            with self._faults("cannot be cleared of what a killed publisher left"):
                for leftover in path.glob(f"{files.TEMPORARY}*"):
                    leftover.unlink(missing_ok=True)
                self._sweep()
        except BaseException:
            self.close()
            raise

    def add_graph(self, digest: str, content: bytes) -> None:
        """Put a graph where versions can refer to it; it stays as long as one does. Raises StoreError."""
        path = self._store.graph_file(digest)
        self._fresh_graphs.add(digest)
        with self._faults(f"graph {digest} was not written"):
            if not path.exists():
                _write(path, content)

    def next_number(self, step: int) -> int:
        """The number for a version of that step: the step where it is above every number before, else one more.

        The number is taken: the next call returns a higher one.
        """
        with self._numbers:
            self._reserved = max(step, self._reserved + 1)
            return self._reserved

    def commit(self, version: Version, tensors: Mapping[str, Array]) -> Version:
        """Publish, then prune. Returns the version as followers see it: prefix, bytes and committed_at are set here.

        Raises StoreError, and ParameterError for a tensor that a checkpoint cannot hold; the version before is then
        still the latest, and nothing of this one is left.
        """
        listed = self._listed()
        self._check(version, listed)
        name = f"ckpt-{version.number}"
        names = (*self._kept(listed), name)
        try:
            with self._faults(f"version {version.number} was not published"):
                _write(layout.mark(self._path, name), version.graph.encode())
                for one in set(listed) - set(names):
                    _write(layout.mark(self._path, one), self._graph(one).encode())
                size = shards.write(self._path / name, tensors)
                version = replace(version, prefix=name, bytes=size, committed_at=time.time())
                _write(layout.record_file(self._path, name), version.to_json().encode())
                _write(layout.state_file(self._path), layout.state_text(layout.State(name, names)).encode())
            self._fresh_graphs.discard(version.graph)
        finally:
            self._prune()
        return version

    def close(self) -> None:
        """Let another publish here. Closing twice is fine."""
        if self._lock is not None:
            lock.release(self._lock)
            self._lock = None

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, version: Version, listed: Sequence[str]) -> None:
        if self._lock is None:
            raise StoreError(self._path, "is closed; expected an open StoreWriter")
        above = max(map(layout.number_of, listed), default=-1)
        if not above < version.number < layout.NUMBERS:
            raise StoreError(self._path, f"expected a version above {above}, found {version.number}")
        if wrong := layout.problem(version):
            raise StoreError(self._path, f"version {version.number}: expected {wrong[0]}, found {wrong[1]}")
        if version.graph and not self._store.graph_file(version.graph).exists():
            raise StoreError(self._path, f"expected graph {version.graph} to be added before version {version.number}")

    def _listed(self) -> tuple[str, ...]:
        state = layout.read_state(self._path)
        return state.names if state else ()

    def _kept(self, listed: Sequence[str]) -> list[str]:
        """What is still listed beside one more version."""
        ours = [name for name in listed if layout.record_file(self._path, name).exists()]
        dropped = ours[: max(0, len(ours) + 1 - self._keep)]
        return [name for name in listed if name not in dropped]

    def _graph(self, name: str) -> str:
        """The digest in a record, "" where there is none to be found."""
        try:
            record = layout.read_record(self._path, name)
        except CorruptCheckpointError:
            return ""
        return record.graph if record else ""

    def _prune(self) -> None:
        """Step 4. It never fails a publication: what cannot be removed stays marked until the next time."""
        try:
            self._sweep()
        except (OSError, StoreError, CorruptCheckpointError) as error:
            _log.warning("%s: old versions were not removed: %s", self._path, error)

    def _sweep(self) -> None:
        listed = self._listed()
        needed = self._fresh_graphs | {self._graph(name) for name in listed}
        for mark in layout.marks(self._path):
            name = layout.marked(mark)
            if name not in listed:
                self._remove(name)
                graph = mark.read_text(errors="replace")
                if layout.is_digest(graph) and graph not in needed:
                    self._store.graph_file(graph).unlink(missing_ok=True)
            mark.unlink()

    def _remove(self, name: str) -> None:
        index_file(self._path / name).unlink(missing_ok=True)
        layout.record_file(self._path, name).unlink(missing_ok=True)
        for data in self._path.glob(f"{glob.escape(name)}.data-*"):
            data.unlink(missing_ok=True)

    @contextmanager
    def _faults(self, problem: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(self._path, f"{problem}: {error.strerror}") from error


def _write(path: Path, content: bytes) -> None:
    with files.aside(path) as file:
        file.write(content)
