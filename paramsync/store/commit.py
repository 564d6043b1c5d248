"""Commits versions to a store: each appears whole, and goes when newer ones have taken its place."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from paramsync.checkpoint.data_file import NO_ROOM, FilePool, FileStamp
from paramsync.checkpoint.writer import CheckpointWriter, Tensor
from paramsync.errors import CorruptCheckpointError, StoreError, UnreadableError
from paramsync.host import files
from paramsync.host.repeats import Repeats
from paramsync.store import store
from paramsync.store.retention import Retention
from paramsync.store.signing import Signer, graph_digest
from paramsync.store.store import Store
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import index_file
from paramsync.version import NUMBERS, Version

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

    def __init__(
        self,
        path: Path,
        *,
        keep: int | Retention = 5,
        durable: bool = False,
        signing_key: Path | None = None,
    ) -> None:
        """Make and lock the store, and clear away what a killed publisher left.

        The `keep` newest versions stay, or those that a Retention names. With the file of a `signing_key`, the records
        of versions are signed, see `paramsync.store.signing`. Raises SettingsError, StoreLockedError, StoreError.
        """
        self._retention = keep if isinstance(keep, Retention) else Retention(keep=keep)
        self._store = Store(path)
        self._path = path
        self._durable = durable
        self._signer = None if signing_key is None else Signer(signing_key)
        self._graph_files: dict[str, tuple[bytes, str]] = {}  # by graph: the content, and its digest
        self._numbers = threading.Lock()
        self._fresh_graphs: set[str] = set()  # added, and not yet in a version
        self._sound: dict[Path, FileStamp] = {}  # graphs with the right content, as long as nobody writes to them
        self._pool: FilePool | None = None
        self._unchanged: frozenset[str] = frozenset()
        self._reserved = -1
        self._publications = 0  # since the store was made
        self._repeats = Repeats()  # of removals that failed
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
        if self._signer is not None and self._graph_files.get(digest, (b"",))[0] is not content:
            self._graph_files = {digest: (content, graph_digest(content))}
        with self._faults(f"graph {digest} was not written"):
            with suppress(FileNotFoundError):
                stamp = FileStamp.of(path.lstat())
                if stamp == self._sound.get(path):
                    return
                if files.has(path, content):
                    self._sound[path] = stamp
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

        Sets prefix, committed_at, bytes, bytes_written, checksum, finite, seal, and signs. `unchanged` are names that
        the caller knows to have the same values as in the last commit of this writer that did not raise; others are
        compared. `copied` is called, on any thread, with the name of each that changed, once nothing here refers to it
        any more. Raises StoreError, CorruptCheckpointError where `checkpoint` was broken meanwhile, ParameterError for
        a tensor that a checkpoint cannot hold, and NotFiniteError where values are to be `finite`; the version before
        is then still the latest, and nothing of this one is left, unless the StoreError says that it was published.
        """
        self._keep_hold()
        listed = self._state.names()
        self._check(version, listed)
        name = f"ckpt-{version.number}"
        names = (*self._state.kept(listed, self._retention, now=time.time()), name)
        published: tuple[str, ...] | None = None
        try:
            with self._faults(f"version {version.number} was not published"):
                self._mark(name, version.graph)
                unlisted = set(listed) - set(names)
                for dropped in unlisted - self._state.gone(unlisted):  # which leave nothing to clear away
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
                    publications=self._publications + 1,
                    committed_at=time.time(),
                )
                if self._signer is not None:
                    version = self._signer.sign(
                        replace(version, digest=written.digest(), graph_file=self._graph_file(version.graph))
                    )
                store.write_text(store.record_file(self._path, name), version.to_json(), durable=self._durable)
                self._sync()
                self._state.publish(version, names)
            published = names
            self._publications += 1
            self._fresh_graphs.discard(version.graph)
            with self._faults(f"version {version.number} was published, but it may not be on the disk"):
                self._sync()
            # only now: after an error the caller compares, as we do, with the version before
            self._unchanged = written.unchanged
            self._checkpoints.remember(written)
        finally:
            try:
                self._sweep(self._state.names() if published is None else published)
            except (OSError, StoreError, CorruptCheckpointError) as error:  # what stays is marked until the next time
                if (told := self._repeats.text(str(error))) is not None:
                    _log.warning("%s: old versions were not removed: %s", self._path, told)
            else:
                self._repeats.over()
        return version

    def has(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether the last commit of this writer has these tensors, and no others."""
        return self._checkpoints.has(tensors)

    def close(self, *, finished: bool = True) -> None:
        """Let another publish here. Closing twice is fine.

        Without `finished`, followers say that the publisher died.
        """
        self._closed = True
        self._let_go(finished=finished)

    def _let_go(self, *, finished: bool = False) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if self._lock is not None:
            store.release_lock(self._lock, finished=finished)
            self._lock = None

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close(finished=not isinstance(error, Exception))  # Ctrl-C is somebody's wish

    def _take(self) -> None:
        with self._faults("cannot be made a store"):
            if self._path.is_file():
                raise StoreError(self._path, "expected a directory, found a file")
            self._path.mkdir(parents=True, exist_ok=True)
            self._lock = store.take_lock(self._path)
        try:
            self._state = StateFile(self._path, durable=self._durable, faults=self._faults)
            with self._numbers:
                self._reserved = max(self._reserved, self._state.highest())
            self._check_that_there_are_numbers()
            with self._faults("cannot be cleared of what a killed publisher left"):
                self._pool = FilePool(self._path, durable=self._durable)
                self._checkpoints = CheckpointWriter(
                    self._pool, durable=self._durable, digested=self._signer is not None
                )
                for version in self._state.remains():
                    self._mark(version.prefix, version.graph)
                self._sweep(self._state.names())
                versions = self._store.versions()
                counts = [len(versions), *(version.publications for version in versions)]
                self._publications = min(max(counts), NUMBERS)
        except BaseException:
            self._let_go()
            raise

    def _check_that_there_are_numbers(self) -> None:
        if self._reserved >= NUMBERS - 1:
            problem = f"has version {self._reserved}, above which there is no number; publish to another store"
            raise StoreError(self._path, problem)

    def _keep_hold(self) -> None:
        """Take the store again where its directory was removed or replaced: the lock went with it."""
        if self._closed:
            raise StoreError(self._path, "is closed; expected an open StoreWriter")
        with self._faults("cannot be looked at"):
            is_held = self._lock is not None and store.holds_lock(self._lock, self._path)
        if not is_held:
            self._let_go()
            self._take()

    def _check(self, version: Version, listed: Sequence[str]) -> None:
        above = max(map(store.number_of, listed), default=-1)
        if version.number <= above:  # a name that leads nowhere may be a slip of whoever wrote it, or of a disk
            gone = self._state.gone(listed)
            above = max((store.number_of(name) for name in listed if name not in gone), default=-1)
        if not above < version.number < NUMBERS:
            raise StoreError(self._path, f"expected a version above {above}, found {version.number}")
        if wrong := store.problem(version):
            raise StoreError(self._path, f"version {version.number}: expected {wrong[0]}, found {wrong[1]}")
        if version.graph and not self._store.graph_file(version.graph).exists():
            raise StoreError(self._path, f"expected graph {version.graph} to be added before version {version.number}")

    def _graph_file(self, digest: str) -> str:
        """The digest of a graph's file; as it was added, or else as it is in the store."""
        if not digest:
            return ""
        if digest in self._graph_files:
            return self._graph_files[digest][1]
        return graph_digest(files.content(self._store.graph_file(digest), limit=files.MAX_MESSAGE))

    def _sweep(self, listed: Sequence[str]) -> None:
        """Step 4."""
        names = files.names(self._path)
        data: defaultdict[str, list[str]] = defaultdict(list)
        for file in names:
            data[file.rpartition(".data-")[0]].append(file)
        kept = set(listed)
        problems = []
        for file in names:
            try:
                if (name := store.marked(file)) is not None:
                    self._clear(name, kept, data.get(name, ()))
                elif file.startswith(files.TEMPORARY):
                    (self._path / file).unlink(missing_ok=True)
            except (OSError, UnreadableError) as error:  # the others can go all the same
                problems.append(error)
        if self._pool is not None:
            self._pool.trim()
        if problems:
            raise problems[0]

    def _clear(self, name: str, listed: Collection[str], data: Iterable[str]) -> None:
        mark = store.mark(self._path, name)
        if store.is_name(name) and name not in listed:
            index_file(self._path / name).unlink(missing_ok=True)
            store.record_file(self._path, name).unlink(missing_ok=True)
            for file in data:
                if self._pool is not None:
                    self._pool.retire(self._path / file)
            graph = mark.read_text(errors="replace")
            if store.is_digest(graph) and graph not in self._fresh_graphs | set(map(self._state.graph, listed)):
                self._store.graph_file(graph).unlink(missing_ok=True)
        mark.unlink()

    def _mark(self, name: str, graph: str) -> None:
        store.write_text(store.mark(self._path, name), graph, durable=self._durable)

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


class _Record(NamedTuple):
    """What is remembered of a record; this where it is broken."""

    graph: str = ""
    committed_at: float = 0.0

    @classmethod
    def of(cls, version: Version) -> _Record:
        return cls(version.graph, version.committed_at or 0.0)


class StateFile:
    """The state file of a store, which lists its versions, oldest first. The publisher's thread owns it.

    Versions without a record, or with a record of other parameters, are TensorFlow's: they stay listed while they are
    there. Our versions that somebody took out of `checkpoint` are listed again. A damaged `checkpoint` is set aside,
    and written anew with what this publisher listed, or else with all our whole versions.
    """

    def __init__(
        self, directory: Path, *, durable: bool, faults: Callable[[str], AbstractContextManager[object]]
    ) -> None:
        """`faults` turns an OSError in its block into a StoreError that begins with the given problem."""
        self._directory = directory
        self._durable = durable
        self._faults = faults
        self._state: store.CheckpointState | None = None  # what `checkpoint` said last
        self._names: tuple[str, ...] | None = None  # what it lists, and our unlisted ones; None before the first look
        self._text: str | None = None  # that was written here: to parse a thousand names takes a while
        self._records: dict[str, _Record | None] = {}  # by version; None where there is no record

    def names(self) -> tuple[str, ...]:
        """The listed names, and our unlisted ones. Raises StoreError."""
        try:
            text = store.read_text(store.state_file(self._directory))
            if self._names is not None and text is not None and text == self._text:
                return self._names
            self._text = None
            state = store.read_state(self._directory)
        except CorruptCheckpointError as error:
            return self._heal(error)
        if self._names is None or state != self._state:  # a stranger's, or of an earlier publisher
            self._state, self._names, self._records = state, self._with_unlisted(state.names if state else ()), {}
        return self._names

    def publish(self, version: Version, names: tuple[str, ...]) -> None:
        """Replace `checkpoint` by one that lists these names, with the version as the latest. Raises OSError."""
        self._write(names)
        self._records = {name: self._records[name] for name in names if name in self._records}
        self._records[version.prefix] = _Record.of(version)

    def kept(self, names: Collection[str], retention: Retention, *, now: float) -> list[str]:
        """The names that stay listed beside one more version, of which ours stay as the retention says."""
        ours = {}
        gone = self.gone(names)
        for name in (name for name in names if name not in gone):
            with suppress(UnreadableError):  # nobody can tell now whose it is: it stays
                if (record := self._known(name)) is not None:
                    ours[name] = record.committed_at
        dropped = {*retention.dropped([*ours.items()], now=now), *gone}
        return [name for name in names if name not in dropped]

    def gone(self, names: Collection[str]) -> set[str]:
        """The names of which no file is there any more."""
        if not names:
            return set()
        there = files.names(self._directory)
        begun = {file[:at] for file in there for at, letter in enumerate(file) if letter == "."}
        return set(names) - begun - set(there)

    def remains(self) -> list[Version]:
        """The records of versions whose index was removed, as by a CheckpointManager that took them for its own."""
        unlisted = self._unlisted(self.names())
        return [version for name, version in unlisted if not index_file(self._directory / name).exists()]

    def highest(self) -> int:
        """The highest number that a listed name or a file of a version has, whatever became of the version, or -1."""
        begun = [file.partition(".")[0] for file in files.names(self._directory) if file.startswith("ckpt-")]
        return max(map(store.number_of, [*begun, *self.names()]), default=-1)

    def graph(self, name: str) -> str | None:
        """The graph's digest in a record, "" where the record is broken, None without one. Raises UnreadableError."""
        record = self._known(name)
        return None if record is None else record.graph

    def _known(self, name: str) -> _Record | None:
        """Of the record of a version what is to be remembered; None without one. Raises UnreadableError."""
        if name not in self._records:
            try:
                record = self._record(name)
                self._records[name] = None if record is None else _Record.of(record)
            except CorruptCheckpointError:
                self._records[name] = _Record()
        return self._records[name]

    def _heal(self, error: CorruptCheckpointError) -> tuple[str, ...]:
        """Set a damaged `checkpoint` aside, and write it anew. Returns the names that it lists now."""
        known = self._names or ()
        gone = self.gone(known)
        names = self._with_unlisted([name for name in known if name not in gone])
        path = store.state_file(self._directory)
        damaged = path.with_name(f"{path.name}.damaged")
        with self._faults(f"{error}; it cannot be set aside"):
            files.keep_aside(path, damaged)
            if names:
                self._write(names)
            else:
                self._state, self._names, self._text = None, (), None
                path.unlink(missing_ok=True)
            if self._durable:
                files.sync_directory(self._directory)
        outcome = f"written anew with {names[-1]} as the latest" if names else "no version of ours is there"
        _log.warning("%s: set aside as %s, %s", error, damaged.name, outcome)
        self._records = {}
        return names

    def _write(self, names: tuple[str, ...]) -> None:
        """Replace `checkpoint` by one that lists these names, with the last as the latest. Raises OSError."""
        state = store.CheckpointState(names[-1], names)
        text = store.state_text(state)
        store.write_text(store.state_file(self._directory), text, durable=self._durable)
        self._state, self._names, self._text = state, names, text

    def _with_unlisted(self, listed: Collection[str]) -> tuple[str, ...]:
        """Our versions that are whole, neither listed nor marked as rubbish, and the listed ones."""
        whole = []
        for name, version in self._unlisted(listed):
            with suppress(UnreadableError):  # it stays as it is, whatever it is
                if self._record(name) == version and index_file(self._directory / name).is_file():
                    whole.append(name)
        return (*sorted(whole, key=store.number_of), *listed)

    def _unlisted(self, listed: Collection[str]) -> Iterator[tuple[str, Version]]:
        """The versions with a record that are neither listed nor marked as rubbish."""
        names = files.names(self._directory)
        known = {*listed, *map(store.marked, names)}
        for file in names:
            name = file.removesuffix(".json")
            if name == file or name in known or not file.startswith("ckpt-"):
                continue
            try:
                version = store.read_record(self._directory, name)
            except (CorruptCheckpointError, StoreError):
                continue
            if version is not None:
                yield name, version

    def _record(self, name: str) -> Version | None:
        """The record of a version; None without one, or where somebody else wrote a checkpoint of that name over ours.

        Raises as `store.read_record` does, and UnreadableError where nobody can tell now.
        """
        record = store.read_record(self._directory, name)
        if record is not None and record.checksum:
            try:
                entries = index.read(index_file(self._directory / name)).entries
            except CorruptCheckpointError:
                return record  # broken, but nobody else's
            if index.digest(entries) != record.checksum:
                return None
        return record
