"""Commits versions to a store: each appears whole, and goes when newer ones have taken its place."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from paramsync.checkpoint.file_pool import NO_ROOM, FilePool
from paramsync.checkpoint.seal import FileStamp
from paramsync.checkpoint.writer import CheckpointWriter, Tensor
from paramsync.errors import CorruptCheckpointError, SettingsError, StoreError, UnreadableError
from paramsync.host import files
from paramsync.store import layout, lock
from paramsync.store.state_file import StateFile
from paramsync.store.store import Store
from paramsync.tensorbundle.index import index_file
from paramsync.version import Version

_log = logging.getLogger("paramsync.store")


class StoreWriter:
    """The publisher's side of a store, which it makes and locks.

    One thread owns it; `next_number` alone may be called from another. A version is published in these steps, and a
    publisher that is killed between any two of them leaves the version before as the latest, and its rubbish marked:

    1. Mark the new version, and the versions that it will push out, as unlisted.
    2. Write data, index and record, each under its name when complete. Unchanged data gets one more name, other data
       goes into retired files (see `FilePool`) or into new ones.
    3. Rename `checkpoint`: the new version is visible, and the latest.
    4. For every marked version that `checkpoint` does not list: remove the index, the record, the names of its data,
       then the graph that no other version has, then the mark.

    With `durable`, data, index, record, directory, `checkpoint` and directory again are each on the disk before the
    next is written. Without, a version outlives its publisher's end but perhaps not the machine's.

    Versions that TensorFlow wrote are never removed, see `StateFile`. A damaged graph is written again.
    """

    def __init__(self, path: Path, *, keep: int = 5, durable: bool = False) -> None:
        """Make and lock the store, and clear away what a killed publisher left.

        Raises SettingsError, StoreLockedError, StoreError.
        """
        if keep < 1:
            raise SettingsError(f"keep: expected at least 1 version, found {keep}")
        self._store = Store(path)
        self._path = path
        self._keep = keep
        self._durable = durable
        self._numbers = threading.Lock()
        self._fresh_graphs: set[str] = set()  # added, and not yet in a version
        self._sound: dict[Path, FileStamp] = {}  # graphs with the right content, as long as nobody writes to them
        self._pool: FilePool | None = None
        self._unchanged: frozenset[str] = frozenset()
        self._reserved = -1
        self._closed = False
        self._lock: int | None = None
        self._take()

    def add_graph(self, digest: str, content: bytes) -> None:
        """Put a graph where versions can refer to it; it stays as long as one does. Raises StoreError.

        A call before each version writes a graph again that was damaged meanwhile, and costs a look at the file's size
        and time where it was not.
        """
        self._keep_hold()
        path = self._store.graph_file(digest)
        self._fresh_graphs.add(digest)
        with self._faults(f"graph {digest} was not written"):
            found = None
            with suppress(FileNotFoundError):
                found = FileStamp.of(path.lstat())
            if found is not None and found == self._sound.get(path):
                return
            if found is not None and files.has(path, content):
                self._sound[path] = found
                return
            if path.is_dir() and not path.is_symlink():  # no file can be renamed over a folder
                files.keep_aside(path, path.with_name(f"{path.name}.damaged"))
            with files.aside(path, durable=self._durable) as file:
                file.write(content)
            if path in self._sound:
                _log.warning("%s: was damaged or removed, and is written again", path)

    def next_number(self, step: int) -> int:
        """Reserve the number for a version of that step: the step, or one more than the highest number before.

        The next call returns a higher number.
        """
        with self._numbers:
            self._reserved = max(step, self._reserved + 1)
            return self._reserved

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self._path

    def latest(self) -> Version | None:
        """The version that followers see as the latest. Raises as `Store.latest` does."""
        return self._store.latest()

    @property
    def unchanged(self) -> frozenset[str]:
        """The parameters whose values the last commit found, or was told, to be the same as in the one before it."""
        return self._unchanged

    def commit(
        self,
        version: Version,
        tensors: Mapping[str, Tensor],
        *,
        unchanged: Collection[str] = (),
        finite: bool = False,
        copied: Callable[[str], object] | None = None,
    ) -> Version:
        """Publish, then prune. Returns the version as followers see it.

        Sets prefix, committed_at, bytes, bytes_written, checksum, finite, seal. `unchanged` are names that the caller
        knows to have the same values as in the last commit of this writer that did not raise; others are compared.
        `copied` is called, on any thread, with the name of each that changed, once nothing here refers to it any more.
        Raises StoreError, CorruptCheckpointError where `checkpoint` was broken meanwhile, ParameterError for a tensor
        that a checkpoint cannot hold, and NotFiniteError where values are to be `finite`; the version before is then
        still the latest, and nothing of this one is left, unless the StoreError says that it was published.
        """
        self._keep_hold()
        listed = self._state.names()
        self._check(version, listed)
        name = f"ckpt-{version.number}"
        names = (*self._state.kept(listed, self._keep), name)
        published: tuple[str, ...] | None = None
        try:
            with self._faults(f"version {version.number} was not published"):
                self._mark(name, version.graph)
                for dropped in set(listed) - set(names):
                    self._mark(dropped, self._state.graph(dropped) or "")
                written = self._checkpoints.write(self._path / name, tensors, unchanged, finite=finite, copied=copied)
                version = replace(
                    version,
                    prefix=name,
                    bytes=written.bytes,
                    bytes_written=written.bytes_written,
                    checksum=written.checksum(),
                    finite=written.finite,
                    seal=written.seal,
                    committed_at=time.time(),
                )
                layout.write_text(layout.record_file(self._path, name), version.to_json(), durable=self._durable)
                self._sync()
                self._state.publish(version, names)
            published = names
            self._fresh_graphs.discard(version.graph)
            with self._faults(f"version {version.number} was published, but it may not be on the disk"):
                self._sync()
            # only now: after an error the caller compares, as we do, with the version before
            self._unchanged = written.unchanged
            self._checkpoints.remember(written)
        finally:
            self._prune(published)
        return version

    def close(self) -> None:
        """Let another publish here. Closing twice is fine."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if self._lock is not None:
            lock.release(self._lock)
            self._lock = None

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> None:
        """Make and lock the directory, and clear away what a killed publisher left."""
        with self._faults("cannot be made a store"):
            if self._path.is_file():
                raise StoreError(self._path, "expected a directory, found a file")
            self._path.mkdir(parents=True, exist_ok=True)
            self._lock = lock.take(self._path)
        try:
            self._state = StateFile(self._path, durable=self._durable, faults=self._faults)
            with self._numbers:
                self._reserved = max(self._reserved, self._state.highest())
            self._check_that_there_are_numbers()
            with self._faults("cannot be cleared of what a killed publisher left"):
                self._pool = FilePool(self._path, durable=self._durable)
                self._checkpoints = CheckpointWriter(self._pool, durable=self._durable)
                for version in self._state.remains():
                    self._mark(version.prefix, version.graph)
                self._sweep(self._state.names())
        except BaseException:
            self._let_go()
            raise

    def _check_that_there_are_numbers(self) -> None:
        if self._reserved >= layout.NUMBERS - 1:
            problem = f"has version {self._reserved}, above which there is no number; publish to another store"
            raise StoreError(self._path, problem)

    def _keep_hold(self) -> None:
        """Take the store again where its directory was removed or replaced: the lock went with it."""
        if self._closed:
            raise StoreError(self._path, "is closed; expected an open StoreWriter")
        with self._faults("cannot be looked at"):
            is_held = self._lock is not None and lock.holds(self._lock, self._path)
        if not is_held:
            self._let_go()
            self._take()

    def _check(self, version: Version, listed: Sequence[str]) -> None:
        above = max(map(layout.number_of, listed), default=-1)
        if version.number <= above:  # a name that leads nowhere may be a slip of whoever wrote it, or of a disk
            gone = self._state.gone(listed)
            above = max((layout.number_of(name) for name in listed if name not in gone), default=-1)
        if not above < version.number < layout.NUMBERS:
            raise StoreError(self._path, f"expected a version above {above}, found {version.number}")
        if wrong := layout.problem(version):
            raise StoreError(self._path, f"version {version.number}: expected {wrong[0]}, found {wrong[1]}")
        if version.graph and not self._store.graph_file(version.graph).exists():
            raise StoreError(self._path, f"expected graph {version.graph} to be added before version {version.number}")

    def _prune(self, listed: Sequence[str] | None) -> None:
        """Step 4, which never fails a publication: what cannot be removed stays marked until the next time."""
        try:
            self._sweep(self._state.names() if listed is None else listed)
        except (OSError, StoreError, CorruptCheckpointError) as error:
            _log.warning("%s: old versions were not removed: %s", self._path, error)

    def _sweep(self, listed: Sequence[str]) -> None:
        found = files.names(self._path)
        problems = []
        for name in [name for name in found if layout.is_mark(name) or name.startswith(files.TEMPORARY)]:
            file = self._path / name
            try:
                if layout.is_mark(name):
                    self._clear(file, listed, found)
                else:
                    file.unlink(missing_ok=True)
            except (OSError, UnreadableError) as error:  # the others can go all the same
                problems.append(error)
        self._state.forget(but=listed)
        if self._pool is not None:
            self._pool.trim()
        if problems:
            raise problems[0]

    def _clear(self, mark: Path, listed: Sequence[str], found: Sequence[str]) -> None:
        name = layout.marked(mark)
        if layout.is_name(name) and name not in listed:
            self._remove(name, found)
            if (graph := self._state.known_graph(name)) is None:
                graph = mark.read_text(errors="replace")
            if layout.is_digest(graph) and graph not in self._fresh_graphs | set(map(self._state.graph, listed)):
                self._store.graph_file(graph).unlink(missing_ok=True)
        mark.unlink()

    def _remove(self, name: str, found: Sequence[str]) -> None:
        index_file(self._path / name).unlink(missing_ok=True)
        layout.record_file(self._path, name).unlink(missing_ok=True)
        for data in found:
            if data.startswith(f"{name}.data-") and self._pool is not None:
                self._pool.retire(self._path / data)

    def _mark(self, name: str, graph: str) -> None:
        layout.write_text(layout.mark(self._path, name), graph, durable=self._durable)

    def _sync(self) -> None:
        if self._durable:
            files.sync_directory(self._path)

    @contextmanager
    def _faults(self, problem: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in NO_ROOM and self._pool is not None:
                with suppress(OSError):
                    self._pool.trim(keep=0)  # makes room for the next try
            raise StoreError(self._path, f"{problem}: {error.strerror}") from error
