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
from paramsync.checkpoint.writer import CheckpointWriter, Tensor
from paramsync.errors import CorruptCheckpointError, SettingsError, StoreError, UnreadableError
from paramsync.host import files
from paramsync.store import layout, lock, recovery
from paramsync.store.graph_files import GraphFiles
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

    Versions without a record, or with a record of other parameters, are TensorFlow's: they are never removed, and stay
    listed while they are there. Our versions that somebody took out of `checkpoint` are listed again by the next
    commit. A damaged `checkpoint` is set aside, and written anew with what this publisher listed, or else with all our
    whole versions; a damaged graph is written again.
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
        self._graph_files = GraphFiles(durable=durable)
        self._graphs: dict[str, str | None] = {}  # by version; None where there is no record
        self._state: tuple[str | None, tuple[str, ...]] | None = None  # the text of `checkpoint`, and what is listed
        self._pool: FilePool | None = None
        self._unchanged: frozenset[str] = frozenset()
        self._reserved = -1
        self._closed = False
        self._lock: int | None = None
        self._take()

    def add_graph(self, digest: str, content: bytes) -> None:
        """Put a graph where versions can refer to it; it stays as long as one does. Raises StoreError.

        A call before each version writes a graph again that was damaged meanwhile.
        """
        self._keep_hold()
        path = self._store.graph_file(digest)
        self._fresh_graphs.add(digest)
        with self._faults(f"graph {digest} was not written"):
            self._graph_files.put(path, content)

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
        listed = self._listed()
        self._check(version, listed)
        name = f"ckpt-{version.number}"
        names = (*self._kept(listed), name)
        published: tuple[str, ...] | None = None
        try:
            with self._faults(f"version {version.number} was not published"):
                self._put(layout.mark(self._path, name), version.graph.encode())
                for dropped in set(listed) - set(names):
                    self._put(layout.mark(self._path, dropped), (self._graph(dropped) or "").encode())
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
                self._put_text(layout.record_file(self._path, name), version.to_json())
                self._sync()
                text = layout.state_text(layout.State(name, names))
                self._put_text(layout.state_file(self._path), text)
            self._state = (text, names)
            published = names
            self._graphs[name] = version.graph
            self._fresh_graphs.discard(version.graph)
            with self._faults(f"version {version.number} was published, but it may not be on the disk"):
                self._sync()
            # only now: whoever was told of an error compares, as we do, with the version before
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
            with self._numbers:
                found = [recovery.highest(self._path), *map(layout.number_of, self._listed())]
                self._reserved = max(self._reserved, *found)
            self._check_that_there_are_numbers()
            with self._faults("cannot be cleared of what a killed publisher left"):
                self._pool = FilePool(self._path, durable=self._durable)
                self._checkpoints = CheckpointWriter(self._pool, durable=self._durable)
                for version in recovery.remains(self._path, self._listed()):
                    self._put(layout.mark(self._path, version.prefix), version.graph.encode())
                self._sweep(self._listed())
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
            self._state = None
            self._take()

    def _check(self, version: Version, listed: Sequence[str]) -> None:
        above = max(map(layout.number_of, listed), default=-1)
        if version.number <= above:  # a name that leads nowhere may be a slip of whoever wrote it, or of a disk
            gone = recovery.gone(self._path, listed)
            above = max((layout.number_of(name) for name in listed if name not in gone), default=-1)
        if not above < version.number < layout.NUMBERS:
            raise StoreError(self._path, f"expected a version above {above}, found {version.number}")
        if wrong := layout.problem(version):
            raise StoreError(self._path, f"version {version.number}: expected {wrong[0]}, found {wrong[1]}")
        if version.graph and not self._store.graph_file(version.graph).exists():
            raise StoreError(self._path, f"expected graph {version.graph} to be added before version {version.number}")

    def _listed(self) -> tuple[str, ...]:
        try:
            text = layout.read_text(layout.state_file(self._path))
            if self._state is not None and text == self._state[0]:
                return self._state[1]
            state = layout.read_state(self._path)  # a stranger's, or of an earlier publisher
        except CorruptCheckpointError as error:
            return self._heal(error)
        listed = state.names if state else ()
        names = (*recovery.names(self._path, listed), *listed)
        self._state, self._graphs = (text, names), {}
        return names

    def _heal(self, error: CorruptCheckpointError) -> tuple[str, ...]:
        """Set a damaged `checkpoint` aside, and write it anew. Returns what is listed now."""
        known = self._state[1] if self._state is not None else ()
        gone = recovery.gone(self._path, known)
        listed = tuple(name for name in known if name not in gone)
        names = (*recovery.names(self._path, listed), *listed)
        path, damaged = layout.state_file(self._path), layout.damaged_state_file(self._path)
        text: str | None = None
        with self._faults(f"{error}; it cannot be set aside"):
            files.keep_aside(path, damaged)
            if names:
                text = layout.state_text(layout.State(names[-1], names))
                self._put_text(path, text)
            else:
                path.unlink(missing_ok=True)
            self._sync()
        self._state, self._graphs = (text, names), {}
        said = f"written anew with {names[-1]} as the latest" if names else "no version of ours is there"
        _log.warning("%s: set aside as %s, %s", error, damaged.name, said)
        return names

    def _kept(self, listed: Sequence[str]) -> list[str]:
        """The names that are still listed beside one more version."""
        ours = [name for name in listed if self._is_ours(name)]
        dropped = {*ours[: max(0, len(ours) + 1 - self._keep)], *recovery.gone(self._path, set(listed) - set(ours))}
        return [name for name in listed if name not in dropped]

    def _is_ours(self, name: str) -> bool:
        """Whether our publisher wrote the version, as far as anybody can tell now."""
        try:
            return self._graph(name) is not None
        except UnreadableError:
            return False

    def _graph(self, name: str) -> str | None:
        """The graph's digest in a record, "" where the record is broken, None without one. Raises UnreadableError."""
        if name not in self._graphs:
            try:
                record = recovery.record(self._path, name)
                self._graphs[name] = record.graph if record else None
            except CorruptCheckpointError:
                self._graphs[name] = ""
        return self._graphs[name]

    def _prune(self, listed: Sequence[str] | None) -> None:
        """Step 4, which never fails a publication: what cannot be removed stays marked until the next time."""
        try:
            self._sweep(self._listed() if listed is None else listed)
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
        self._graphs = {name: graph for name, graph in self._graphs.items() if name in listed}
        if self._pool is not None:
            self._pool.trim()
        if problems:
            raise problems[0]

    def _clear(self, mark: Path, listed: Sequence[str], found: Sequence[str]) -> None:
        name = layout.marked(mark)
        if layout.is_name(name) and name not in listed:
            self._remove(name, found)
            if (graph := self._graphs.get(name)) is None:
                graph = mark.read_text(errors="replace")
            if layout.is_digest(graph) and graph not in self._fresh_graphs | set(map(self._graph, listed)):
                self._store.graph_file(graph).unlink(missing_ok=True)
        mark.unlink()

    def _remove(self, name: str, found: Sequence[str]) -> None:
        index_file(self._path / name).unlink(missing_ok=True)
        layout.record_file(self._path, name).unlink(missing_ok=True)
        for data in found:
            if data.startswith(f"{name}.data-") and self._pool is not None:
                self._pool.retire(self._path / data)

    def _put(self, path: Path, content: bytes) -> None:
        with files.aside(path, durable=self._durable) as file:
            file.write(content)

    def _put_text(self, path: Path, text: str) -> None:
        self._put(path, layout.content(path, text))

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
