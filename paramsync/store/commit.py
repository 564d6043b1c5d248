"""Commits versions to a store. A version becomes visible as a whole, and is removed when newer versions replace it."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from paramsync.checkpoint.data_file import FileStamp
from paramsync.checkpoint.file_pool import NO_ROOM, FilePool
from paramsync.checkpoint.writer import Arriving, CheckpointWriter, Tensor, Written
from paramsync.errors import CorruptCheckpointError, StoreError, UnreadableError
from paramsync.host import files
from paramsync.host.files import Repeats
from paramsync.store import store
from paramsync.store.signing import Signer, graph_digest
from paramsync.store.state_file import Retention, StateFile, mark_file, marked_name, write_text
from paramsync.store.store import Store
from paramsync.tensorbundle.index import index_file
from paramsync.version import NUMBERS, Version

_log = logging.getLogger("paramsync.store")


class StoreWriter:
    """Makes, locks and writes a store. The publisher uses it.

    One thread owns it; only `next_number` may be called from another thread. A version is published in these steps. If
    the publisher is killed in between, the previous version stays the latest, and marks show which files are rubbish:

    1. Mark the new version, and the versions that it will replace, as unlisted.
    2. Write data, index and record, each renamed to its name when complete. A data file that did not change is linked
       under the new name; other data goes into retired files (see `FilePool`) or new files.
    3. Rename `checkpoint`: the new version is visible, and the latest.
    4. For every marked version that `checkpoint` does not list: remove the index, the record, the names of the data,
       then the graph if no other version uses it, then the mark.

    With `durable`, data, index, record, directory, `checkpoint` and directory again are each synced to the disk before
    the next is written. Otherwise a version survives a crash of its publisher, but perhaps not of the machine.

    Never removes versions that TensorFlow wrote, see `StateFile`. Writes a damaged graph file again.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep: int | Retention = 5,
        durable: bool = False,
        signing_key: Path | None = None,
    ) -> None:
        """Make and lock the store, and remove the rubbish of a killed publisher.

        `keep` is how many of the newest versions stay, or a Retention. If `signing_key` names the file of a key, the
        records of versions are signed, see `paramsync.store.signing`. Raises SettingsError, StoreLockedError,
        StoreError.
        """
        self._retention = keep if isinstance(keep, Retention) else Retention(keep=keep)
        self._store = Store(path)
        self.path = path
        """The store's directory."""
        self._durable = durable
        self._signer = None if signing_key is None else Signer(signing_key)
        self._graph_files: dict[str, tuple[bytes, str]] = {}  # by graph: the file's content and its digest
        self._numbers = threading.Lock()  # guards `_reserved`
        self._fresh_graphs: set[str] = set()  # graphs that no version uses yet
        self._sound: dict[Path, FileStamp] = {}  # by graph file: its stamp when its content was found right
        self._pool: FilePool | None = None
        self.unchanged: frozenset[str] = frozenset()
        """The parameters that the last commit did not change."""
        self._reserved = -1
        self._before: Version | None = None  # the newest version of another store that this store continues
        self._publications = 0  # number of publications since the store was made
        self._repeats = Repeats()  # suppresses repeated log lines about failed removals
        self._closed = False
        self._lock: int | None = None
        self._take()

    def add_graph(self, digest: str, content: bytes) -> None:
        """Add a graph, which stays as long as a version refers to it. Raises StoreError.

        Call this before each version: it compares the file's size and time, and writes a damaged graph again.
        """
        self._keep_lock()
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
            if path.is_dir() and not path.is_symlink():  # a file cannot be renamed over a folder
                files.keep_aside(path, path.with_name(f"{path.name}.damaged"))
            with files.aside(path, durable=self._durable) as file:
                file.write(content)
            if path in self._sound:
                _log.warning("%s: was damaged or removed, and is written again", path)

    def next_number(self, step: int) -> int:
        """Reserve a number for a version of this step: the step or, if higher, the highest number so far plus one."""
        with self._numbers:
            self._reserved = max(step, self._reserved + 1)
            return self._reserved

    def go_above(self, version: Version) -> None:
        """Continue another store: from now on give versions higher numbers than its newest `version`."""
        self._before = version
        with self._numbers:
            self._reserved = max(self._reserved, version.number)

    def latest(self) -> Version | None:
        """Return the latest version. While the store is empty, return the version given to `go_above`, if any."""
        return self._store.latest() or self._before

    def versions(self) -> list[Version]:
        """Return all versions, ascending. If `checkpoint` is damaged, writes it anew first. Raises StoreError."""
        try:
            return self._store.versions()
        except CorruptCheckpointError:
            self._keep_lock()
            self._state.read_names()
            return self._store.versions()

    def commit(
        self,
        version: Version,
        tensors: Mapping[str, Tensor] | Arriving,
        *,
        unchanged: Collection[str] = (),
        finite: bool = False,
        serve_after: float | None = None,
        copied: Callable[[str], object] | None = None,
        chosen: Collection[int] = (),
    ) -> Version:
        """Publish a version, then remove old versions. Returns the version as followers see it.

        Completes the record with prefix, committed_at, serve_at, bytes, bytes_written, checksum, finite, seal and
        publications, and signs the record if there is a key. `Arriving` tensors belong to a version of another store:
        this version's record stays as it is, and the tensors must have the record's checksum. The version may be older
        than the latest, which stays the latest. If the store already has a version of this number, for example a
        damaged version, its files are removed first.

        Args:
            unchanged: Names of parameters that have the same values as in this writer's last successful commit. All
                other parameters are compared.
            finite: Whether to refuse NaN and infinity.
            serve_after: Seconds from the commit until followers serve the version; None: they do not wait.
            copied: Called on any thread with the name of each parameter that changed, once this writer no longer refers
                to its value.
            chosen: Numbers of versions that stay, however old they are.

        Raises StoreError, CorruptCheckpointError if `checkpoint` was damaged meanwhile, ParameterError for a tensor
        that TensorFlow cannot store, NotFiniteError, and every error of `Arriving.fill`. After an error the previous
        version is still the latest, and nothing of the new version is left, unless a StoreError says that it was
        published.
        """
        self._keep_lock()
        listed = self._state.read_names()
        name = f"ckpt-{version.number}"
        if isinstance(tensors, Arriving):
            listed = self._take_off(name, listed)
        self._check(version, [other for other in listed if other == name or not isinstance(tensors, Arriving)])
        kept = self._state.keep(listed, self._retention, now=time.time(), chosen=chosen)
        at = next((at for at, other in enumerate(kept) if store.number_of(other) > version.number), len(kept))
        names = (*kept[:at], name, *kept[at:])
        published: tuple[str, ...] | None = None
        try:
            with self._faults(f"version {version.number} was not published"):
                self._mark(name, version.graph)
                unlisted = set(listed) - set(names)
                for dropped in unlisted - self._state.find_gone(unlisted):  # leave out versions without files
                    self._mark(dropped, self._state.graph(dropped) or "")
                written = self._checkpoints.write(self.path / name, tensors, unchanged, finite=finite, copied=copied)
                if not isinstance(tensors, Arriving):
                    version = self._record(version, name, written, serve_after)
                elif written.checksum() != version.checksum:
                    expected = f"the tensors that were published as version {version.number}"
                    raise CorruptCheckpointError(self.path / name, expected=expected, found="others")
                write_text(store.record_file(self.path, name), version.to_json(), durable=self._durable)
                self._sync()
                self._state.publish(version, names)
            published = names
            self._publications += 1
            self._fresh_graphs.discard(version.graph)
            with self._faults(f"version {version.number} was published, but it may not be on the disk"):
                self._sync()
            # Remember the version only now: after an error, the next commit must compare with the previous version.
            self.unchanged = written.unchanged
            self._checkpoints.remember(written)
        finally:
            try:
                self._sweep(self._state.read_names() if published is None else published)
            except (OSError, StoreError, CorruptCheckpointError) as error:  # the next commit tries again
                if (text := self._repeats.text(str(error))) is not None:
                    _log.warning("%s: old versions were not removed: %s", self.path, text)
            else:
                self._repeats.over()
        return version

    def has(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether this writer's last commit has these tensors, and no other tensors."""
        return self._checkpoints.has(tensors)

    def close(self, *, finished: bool = True) -> None:
        """Unlock the store for another publisher. May be called twice.

        Unless `finished`, followers report that the publisher died.
        """
        self._closed = True
        self._release(finished=finished)

    def _release(self, *, finished: bool = False) -> None:
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
        self.close(finished=not isinstance(error, Exception))  # Ctrl-C counts as finished

    def _take(self) -> None:
        with self._faults("cannot be made a store"):
            if self.path.is_file():
                raise StoreError(self.path, "expected a directory, found a file")
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = store.take_lock(self.path)
        try:
            self._state = StateFile(self.path, durable=self._durable, faults=self._faults)
            with self._numbers:
                self._reserved = max(self._reserved, self._state.highest())
            self._check_numbers_left()
            with self._faults("cannot be cleared of what a killed publisher left"):
                self._pool = FilePool(self.path, durable=self._durable)
                self._checkpoints = CheckpointWriter(
                    self._pool, durable=self._durable, digested=self._signer is not None
                )
                for version in self._state.find_remains():
                    self._mark(version.prefix, version.graph)
                self._sweep(self._state.read_names())
                versions = self._store.versions()
                counts = [len(versions), *(version.publications for version in versions)]
                self._publications = min(max(counts), NUMBERS)
        except BaseException:
            self._release()
            raise

    def _check_numbers_left(self) -> None:
        if self._reserved >= NUMBERS - 1:
            problem = f"has version {self._reserved}, above which there is no number; publish to another store"
            raise StoreError(self.path, problem)

    def _keep_lock(self) -> None:
        """Take the store again if its directory was removed or replaced: the lock was lost with it."""
        if self._closed:
            raise StoreError(self.path, "is closed; expected an open StoreWriter")
        with self._faults("cannot be looked at"):
            is_locked = self._lock is not None and store.holds_lock(self._lock, self.path)
        if not is_locked:
            self._release()
            self._take()

    def _take_off(self, name: str, listed: tuple[str, ...]) -> tuple[str, ...]:
        """Remove a version from the store, if it is there and ours. Returns the names of the other versions."""
        if name not in listed or (graph := self._state.graph(name)) is None:
            return listed
        others = tuple([other for other in listed if other != name])
        with self._faults(f"{name} was not removed"):
            self._mark(name, graph)
            self._state.list_only(others)
            self._sweep(others)
        return others

    def _check(self, version: Version, listed: Sequence[str]) -> None:
        """Raise StoreError for a version that cannot be added above the listed versions."""
        above = max(map(store.number_of, listed), default=-1)
        if version.number <= above:  # ignore names without files: a person's mistake or a disk error left them
            gone = self._state.find_gone(listed)
            above = max((store.number_of(name) for name in listed if name not in gone), default=-1)
        if not above < version.number < NUMBERS:
            raise StoreError(self.path, f"expected a version above {above}, found {version.number}")
        if wrong := store.problem(version):
            raise StoreError(self.path, f"version {version.number}: expected {wrong[0]}, found {wrong[1]}")
        if version.graph and not self._store.graph_file(version.graph).exists():
            raise StoreError(self.path, f"expected graph {version.graph} to be added before version {version.number}")

    def _record(self, version: Version, name: str, written: Written, serve_after: float | None) -> Version:
        """Return the record of a version that was written, signed if there is a key."""
        now = time.time()
        version = replace(
            version,
            prefix=name,
            bytes=written.bytes,
            bytes_written=written.bytes_written,
            checksum=written.checksum(),
            finite=written.finite,
            seal=written.seal,
            publications=self._publications + 1,
            committed_at=now,
            serve_at=None if serve_after is None else now + serve_after,
        )
        if self._signer is None:
            return version
        return self._signer.sign(replace(version, digest=written.digest(), graph_file=self._graph_file(version.graph)))

    def _graph_file(self, digest: str) -> str:
        """Return the digest of a graph's file: of the file that was added last, or else of the file in the store."""
        if not digest:
            return ""
        if digest in self._graph_files:
            return self._graph_files[digest][1]
        return graph_digest(files.content(self._store.graph_file(digest), limit=files.MAX_MESSAGE))

    def _sweep(self, listed: Sequence[str]) -> None:
        """Remove every marked version that is not in `listed` (step 4 of a publication)."""
        names = files.names(self.path)
        data: defaultdict[str, list[str]] = defaultdict(list)
        for file in names:
            data[file.rpartition(".data-")[0]].append(file)
        kept = set(listed)
        problems = []
        for file in names:
            try:
                if (name := marked_name(file)) is not None:
                    self._clear(name, kept, data.get(name, ()))
                elif file.startswith(files.TEMPORARY):
                    (self.path / file).unlink(missing_ok=True)
            except (OSError, UnreadableError) as error:  # go on with the other versions
                problems.append(error)
        if self._pool is not None:
            self._pool.trim()
        if problems:
            raise problems[0]

    def _clear(self, name: str, listed: Collection[str], data: Iterable[str]) -> None:
        mark = mark_file(self.path, name)
        if store.is_name(name) and name not in listed:
            index_file(self.path / name).unlink(missing_ok=True)
            store.record_file(self.path, name).unlink(missing_ok=True)
            for file in data:
                if self._pool is not None:
                    self._pool.retire(self.path / file)
            graph = mark.read_text(errors="replace")
            if store.is_digest(graph) and graph not in self._fresh_graphs | set(map(self._state.graph, listed)):
                self._store.graph_file(graph).unlink(missing_ok=True)
        mark.unlink()

    def _mark(self, name: str, graph: str) -> None:
        write_text(mark_file(self.path, name), graph, durable=self._durable)

    def _sync(self) -> None:
        if self._durable:
            files.sync_directory(self.path)

    @contextmanager
    def _faults(self, problem: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in NO_ROOM and self._pool is not None:
                with suppress(OSError):
                    self._pool.trim(keep=0)  # make room for the next try
            raise StoreError(self.path, f"{problem}: {error.strerror}") from error
