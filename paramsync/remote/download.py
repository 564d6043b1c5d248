"""Fetches versions of a bucket into a local store with the fewest bytes, and checks each before its commit.

Fetches the newest version or the pinned one, versions with labels, and versions that are damaged in the local store.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paramsync.checkpoint.data_file import FileStamp
from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.tensor_bytes import PORTION, THREADS, each
from paramsync.checkpoint.writer import Arriving, Range
from paramsync.dtypes import Array
from paramsync.errors import (
    CorruptCheckpointError,
    EmptiedError,
    NotFollowedError,
    ParameterError,
    ParamsyncError,
    RemoteError,
    StoreError,
    StoreLockedError,
    UnknownVersionError,
)
from paramsync.host import files
from paramsync.moments import wrong_clock
from paramsync.remote import copy_note, protocol, tensors
from paramsync.remote import manifest as manifests
from paramsync.remote import state as states
from paramsync.remote.bucket import PARALLEL, Bucket
from paramsync.remote.bucket_status import BucketStatus
from paramsync.remote.copy_note import CopyNote
from paramsync.remote.manifest import Edge, Manifest, Whole
from paramsync.remote.protocol import Answer
from paramsync.remote.state import Listed, State
from paramsync.remote.tensors import Blocks, Contents
from paramsync.remote.transfer import Transfer
from paramsync.store import store
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Entry, Index
from paramsync.version import Version

_EMPTY: Array = np.empty(0, np.uint8)
_PIECE = 512 << 10  # bytes of a delta that one connection fetches: over a long distance, several new ones are faster
_COMMIT_SECONDS = 300.0  # a commit may take so long, with all its retries
_FIRST_PAUSE, _LAST_PAUSE = 15.0, 600.0  # seconds until a version that arrived damaged is fetched again


class _LostError(Exception):
    """Carries an OSError of the bucket through the writer, which would treat it as an error of its store."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class _View:
    """What a mirror knows of one bucket.

    state      the last state that was read and accepted
    followed   epoch and sequence of that state; after a restart, known for the bucket of the copy's note
    tag        the tag of the object with that state
    looked_at  when the last successful look at the state began
    bad        names of deltas that arrived damaged
    refused    by version number: when to retry a version that arrived damaged, and the length of the pause
    lost       number of the version whose last fetch failed because an object had left the bucket
    """

    state: State | None = None
    followed: tuple[int, int] = (0, 0)
    tag: str | None = None
    looked_at: float | None = None
    bad: set[str] = field(default_factory=set)
    refused: dict[int, tuple[float, float]] = field(default_factory=dict)
    lost: int | None = None


class Download:
    """Copies versions from a bucket for followers. Writes nothing into the bucket. One thread owns it."""

    def __init__(self, bucket: Bucket, path: Path, *, keep: int, stop: threading.Event, between: str = "") -> None:
        """Make the store at `path` and lock it, so that nobody else publishes there. Raises StoreError.

        Versions with labels are fetched and kept, too, unless the store is between two buckets: `between` is then the
        address of the second.
        """
        self._bucket = self._first_bucket = bucket
        self._stop = stop
        self._store = Store(path)
        try:
            self._writer = StoreWriter(path, keep=keep)
        except StoreLockedError as error:
            advice = "give each a directory of its own, servers by --cache"
            raise StoreError(path, f"another mirror copies into it ({error.owner}): {advice}") from error
        self._written = copy_note.read(path)
        self._noted = self._note_file()
        bucket.answered_at = self._answered_at = copy_note.answered_at(path)
        note = self._note = self._written or CopyNote(bucket.address)
        self._views = {note.address: _View(followed=(note.epoch, note.sequence))}  # by address
        self._view = self._views.setdefault(bucket.address, _View())
        self._seen: State | None = None
        self._base: tuple[Version, Bundle] | None = None  # the last commit of this writer
        self._between = between
        self._files: dict[str, FileStamp] = {}  # the files of the local store, by name, when `_here` was read
        self._here: dict[int, Version] = {}  # the versions of the local store, by number
        self._sound: dict[int, frozenset[FileStamp]] = {}  # files of the local versions that were written or verified
        self.clock = ""
        """How the clock of this host, or of the uploading host, differs from the bucket's; "" if not much."""
        self._upload_clock = ""  # how the uploading host's clock differed at the last new version; "" if not much

    def turn_to(self, bucket: Bucket) -> None:
        """Follow another bucket with the same versions. Operators' choices remain those in the first bucket."""
        self._bucket, self._view = bucket, self._views.setdefault(bucket.address, _View())

    def close(self) -> None:
        self._base = None
        self._writer.close()

    @property
    def state(self) -> State | None:
        """The last state that was read."""
        return self._seen

    @property
    def waiting(self) -> tuple[Listed, ...]:
        """The versions that are still to be fetched. Without a pin, also all versions newer than the local store."""
        if self._seen is None:
            return ()
        newest, wanted = max(self._here, default=-1), set(self._wanted)
        if self._note.pinned is None:
            wanted.update(listed for listed in self._seen.versions if listed.number > newest)
        return tuple([listed for listed in self._seen.versions if listed in wanted and listed.number not in self._here])

    @property
    def _wanted(self) -> list[Listed]:
        """The versions that should be here, the most important first."""
        if self._seen is None or self._seen.newest is None:
            return []
        listed = {listed.number: listed for listed in self._seen.versions}
        wanted = self._seen.newest if self._note.pinned is None else listed.get(self._note.pinned)
        if wanted is None and self._bucket is not self._first_bucket:
            wanted = self._seen.newest  # this bucket lacks the pinned version, and a new server must serve some version
        chosen = [listed[number] for number in sorted(self._chosen & listed.keys())]
        return list(dict.fromkeys([*filter(None, [wanted]), *chosen]))

    @property
    def _chosen(self) -> set[int]:
        """The versions that operators chose, which stay here."""
        note = self._note
        return set() if self._between else states.chosen(note.pinned, note.labels, note.move)

    @property
    def choices(self) -> dict[str, Any]:
        """The choices of operators in the first bucket, in the form of a state."""
        move = {} if self._note.move is None else {"move": asdict(self._note.move)}
        choices = {"pinned": self._note.pinned, "labels": dict(self._note.labels), **move}
        return {name: choice for name, choice in choices.items() if choice not in (None, {})}

    @property
    def newest(self) -> int | None:
        """Number of the newest version in the bucket, as last seen here."""
        newest = None if self._seen is None else self._seen.newest
        return None if newest is None else newest.number

    def run_once(self) -> Transfer | None:
        """Read the state, and fetch a version that followers need and that is missing or damaged in the local store.

        Raises RemoteError for an unusable state or version, ConnectionError if the bucket does not answer, EmptiedError
        if the state is gone, and errors of the local store. A later call tries again.
        """
        began = time.time()
        found = self._bucket.look(self._view.tag)
        if found is Answer.UNKNOWN:
            raise ConnectionError(f"{self._bucket.address}: {self._bucket.last_error}")
        if isinstance(found, Answer):
            if self._note.run:
                raise EmptiedError
            return None
        if found is not None:
            previous = self._view.state
            self._look(state := states.from_json(found.content))
            if found.written_at is not None and self._view.looked_at is not None and found.tag != self._view.tag:
                self._compare_clocks(found.written_at, self._view.looked_at, previous, state)
            self._view.tag = found.tag
        self._seen, self._view.looked_at = self._view.state, began
        self._list()
        self._check_newest(max(self._here, default=-1))
        due = (listed for listed in self._wanted if not self._waits(listed))
        listed = next((listed for listed in due if not self._is_sound(self._here.get(listed.number))), None)
        if listed is None:
            return None
        before = self._here
        try:
            listed = self._first(listed)
            done = self.fetch(listed)
        except FileNotFoundError as error:  # deleted since the state was read: a newer state will name a newer version
            self._view.tag = None
            lost, self._view.lost = self._view.lost, listed.number
            if lost is None:
                return None
            self._refuse(listed)
            advice = "" if lost == listed.number else "; keep more versions, or publish less often"
            raise RemoteError(f"version {listed.number} lacks an object: {error}{advice}") from error
        except RemoteError:
            self._refuse(listed)
            raise
        self._view.lost = None
        if listed.number not in before:
            return done
        damage = f"version {listed.number} was damaged in {self._store.path}, and came again"
        return replace(done, damages=(damage, *done.damages))

    def _compare_clocks(self, written_at: float, looked_at: float, previous: State | None, state: State) -> None:
        """Compare clocks with the bucket's, which said `written_at` in whole seconds when the state was written.

        This host read the state `previous` when its clock said `looked_at`.
        """
        here = wrong_clock((written_at, written_at + 1.0), (looked_at, time.time()))
        newest = state.newest
        if not here and newest is not None and newest.at and (previous is None or newest != previous.newest):
            # The version came after `looked_at`, because the look at that time did not find it. It came at `written_at`
            # or earlier, because operators may have written the state again since.
            commit = newest.at, newest.at + _COMMIT_SECONDS
            self._upload_clock = wrong_clock((looked_at, written_at + 1.0), commit, "the uploading host")
        self.clock = here or self._upload_clock

    def _first(self, wanted: Listed) -> Listed:
        """Return the version to fetch before `wanted`, or else `wanted`.

        Each version that waits for its moment will serve, so the oldest of them is fetched first. Damaged versions are
        skipped.
        """
        first, waiting = wanted, [listed for listed in self.waiting if listed.number <= wanted.number]
        for listed in reversed(waiting if len(waiting) > 1 else ()):
            if self._waits(listed):
                continue
            try:
                serve_at = read_manifest(self._bucket, listed).version().serve_at
            except (RemoteError, FileNotFoundError):
                if listed == wanted:
                    break  # fetching it raises the error again
                self._refuse(listed)
                continue
            if serve_at is None or serve_at <= time.time():
                break
            first = listed
        return first

    def _check_newest(self, local: int) -> None:
        """Raise NotFollowedError if the bucket's newest version is older than the local version."""
        if (-1 if self.newest is None else self.newest) < local:
            newest = "no version" if self.newest is None else f"version {self.newest}"
            if self._bucket is not self._first_bucket:
                raise NotFollowedError(f"the bucket is older: found version {local} here and {newest} there")
            found = f"version {local} here and {newest} in the bucket"
            advice = f"remove {self._store.path} to follow the bucket from its beginning"
            raise NotFollowedError(f"the bucket has an older state, or another run: found {found}; {advice}")

    def _waits(self, listed: Listed) -> bool:
        """Whether this version arrived damaged and its pause is not over."""
        return listed.number in self._view.refused and time.monotonic() < self._view.refused[listed.number][0]

    def _refuse(self, listed: Listed) -> None:
        """Set the pause after which a damaged version is fetched again. It doubles with each failure."""
        before = self._view.refused.get(listed.number)
        pause = _FIRST_PAUSE if before is None else min(2 * before[1], _LAST_PAUSE)
        self._view.refused[listed.number] = time.monotonic() + pause, pause
        self._view.bad = self._view.bad if before is None else set()

    def _is_sound(self, version: Version | None) -> bool:
        """Whether the local store has this version, undamaged. Verifies a version once, and when its files change."""
        if version is None:
            return False
        if self._sound.get(version.number) != (stamps := self._stamps(version)):
            try:
                faults = self._store.open(version).faults(lambda count: None)
                is_sound = all(isinstance(fault, ParameterError) for fault in faults.values())
            except (CorruptCheckpointError, UnknownVersionError):
                is_sound = False
            if not is_sound or self._graph(version) is None:
                return False
            self._sound[version.number] = stamps
        return True

    def _list(self) -> None:
        """Read the versions of the local store, unless all its files are the same as at the last call."""
        found: dict[str, FileStamp] = {}
        with suppress(OSError), os.scandir(self._store.path) as entries:
            for entry in entries:
                if entry.name != copy_note.NAME:  # changes with each look
                    with suppress(FileNotFoundError):
                        found[entry.name] = FileStamp.of(entry.stat())
        if found != self._files:
            self._here = {version.number: version for version in self._writer.versions()}
            self._sound = {number: stamps for number, stamps in self._sound.items() if number in self._here}
            self._files = found

    def _stamps(self, version: Version) -> frozenset[FileStamp]:
        """Return the stamps of a version's files in the local store."""
        graph = self._store.graph_file(version.graph).name if version.graph else ""
        ours = (name for name in self._files if name == graph or name.startswith(f"{version.prefix}."))
        return frozenset(map(self._files.__getitem__, ours))

    def note(self, status: BucketStatus) -> None:
        """Write the note in the copy: the status, operators' choices, and the last state that this mirror followed."""
        self._note = replace(self._note, reason=status.reason, status=status.ageless())
        if not status.reason and self._note_file() != self._noted:  # another program removed it, or cut it
            self._written = None
        self._write_note()

    def _write_note(self) -> None:
        if (now := self._bucket.answered_at) is not None:  # a bucket that never answered must not reset the time
            self._answered_at = now
        answered_at = self._answered_at
        if self._note != self._written:
            self._note.write(self._store.path, answered_at)
            self._noted = self._note_file()
            self._written = None if self._noted is None else self._note
        elif answered_at is not None:
            copy_note.touch(self._store.path, answered_at)

    def _note_file(self) -> tuple[int, int] | None:
        """Inode and size of the note; None if there is none."""
        with suppress(OSError):
            found = (self._store.path / copy_note.NAME).stat()
            return found.st_ino, found.st_size
        return None

    def _look(self, state: State) -> None:
        """Accept a state as the last one seen. Raises NotFollowedError if it must not be followed."""
        if self._written is not None and self._note_file() is None:  # an operator removed the note to allow another run
            self._note, self._written = CopyNote(self._bucket.address), None
            for view in self._views.values():
                view.followed = (0, 0)
        note = self._note
        if note.run not in ("", state.run):
            found = f"expected versions of run {note.run[:8]}, found those of run {state.run[:8]}"
            advice = f"empty {self._between} and restart this mirror" if self._between else f"remove {self._store.path}"
            advice = f"; {advice} to follow these" if self._bucket is self._first_bucket else ""
            raise NotFollowedError(f"another training began there: {found}{advice}")
        if protocol.is_older(state, *self._view.followed):
            raise NotFollowedError(f"{states.NAME}: somebody brought an older state back; ignored")
        self._seen = self._view.state = state
        numbers = [listed.number for listed in state.versions]
        self._view.refused = {number: pause for number, pause in self._view.refused.items() if number in numbers}
        address = self._bucket.address
        self._view.followed = state.epoch, state.sequence
        self._note = replace(self._note, run=state.run)
        is_first = self._bucket is self._first_bucket
        if is_first:  # a restarted mirror must know the last state there
            self._note = replace(
                self._note,
                address=address,
                epoch=state.epoch,
                sequence=state.sequence,
                ended=state.ended,
                ended_at=state.ended_at,
            )
        if is_first or not note.epoch:  # until the first answers, use its choices as this one repeats them
            by = state if is_first else state.of_source
            self._note = replace(self._note, pinned=by.pinned, labels=dict(by.labels), move=by.move)
        if not note.run:  # the copy must name its run before it contains a version of that run
            self._write_note()

    def fetch(self, listed: Listed) -> Transfer:
        """Fetch a version with the fewest bytes.

        Raises FileNotFoundError if an object is missing, RemoteError if the version arrives damaged.
        """
        begun = time.monotonic()
        manifest = read_manifest(self._bucket, listed)
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
        try:
            tensors.check(packed)
        except ValueError as error:
            raise RemoteError(f"{listed.manifest}: {error}") from error
        self._add_graph(version, manifest)
        problem: Exception = RemoteError("no deltas lead here from the whole version")
        damages: list[str] = []
        for kind, edges in self._ways(manifest, version.number, tensors.size_of(packed)):
            try:
                arriving, unchanged, moved = self._arriving(kind, manifest.whole, packed, edges)
                self._commit(version, arriving, unchanged)
            except (ValueError, RemoteError, CorruptCheckpointError, FileNotFoundError) as error:
                problem = error
                damages.append(f"version {version.number} came damaged as {kind}, and is tried another way: {error}")
                names = {edge.name for edge in edges}
                if kind == "delta":
                    self._sound.pop(edges[0].base, None)  # a bit may flip although no stamp changes
                if kind == "delta" and not self._is_sound(self._here.get(edges[0].base)):
                    self._base = None  # the next version must not reuse its tensors
                elif self._view.bad.isdisjoint(names):  # any of these deltas may be damaged
                    self._view.bad |= names
            else:
                seconds = time.monotonic() - begun
                size = tensors.size_of(packed)
                return Transfer(version, moved, size, kind, len(edges), seconds, listed.at, tuple(damages))
        if isinstance(problem, FileNotFoundError):
            raise problem
        raise RemoteError(f"version {listed.number} came damaged: {problem}")

    def _ways(self, manifest: Manifest, number: int, size: int) -> Iterator[tuple[str, tuple[Edge, ...]]]:
        """Yield the ways to get a version: with deltas from a local version, then from the whole version in the bucket.

        No way uses deltas that arrived damaged before.
        """
        self._list()
        here = {base: version.checksum for base, version in self._here.items() if base < number}
        fit = [edge for edge in manifest.edges if here.get(edge.base, edge.checksum) == edge.checksum]
        way = manifests.route([edge for edge in fit if edge.name not in self._view.bad], here, number, most=size)
        if way is not None:
            yield "delta", way
        sound = [edge for edge in manifest.edges if edge.name not in self._view.bad]
        way = manifests.route(sound, [manifest.whole.number], number, most=size + 1)
        if way is not None:
            yield "whole", way

    def _arriving(
        self, kind: str, whole: Whole, packed: Index, edges: tuple[Edge, ...]
    ) -> tuple[Arriving, frozenset[str], int]:
        """Return the tensors to commit, the names of tensors unchanged since the last commit, and the bytes to receive.

        Raises ValueError, RemoteError for objects that do not fit the version.
        """
        entries = packed.entries
        contents: Contents = {}
        if kind == "whole":
            received, threads = tensors.size_of(packed), PARALLEL
            if whole.size != received:
                raise ValueError(f"expected {received} bytes of a whole version, found {whole.size}")
            if (found := self._bucket.size(whole.name)) < received:  # checked before memory is allocated
                raise RemoteError(f"{whole.name}: expected {received} bytes, found {found}")
        else:
            received, threads = 0, THREADS
            bundle = self._open(edges[0].base)
            if not tensors.alike(bundle.entries, entries):
                raise ValueError("expected a version with the same tensors")
            contents = tensors.contents(bundle)
        deltas = [(edge.name, self._delta(edge, entries)) for edge in edges]

        def fill(ranges: Sequence[Range], places: Sequence[Array]) -> None:
            try:
                if not contents:
                    self._read_whole(whole.name, entries, ranges, places)
                for (name, start, stop), place in zip(ranges, places, strict=True):
                    source = contents[name][start:stop] if contents else place
                    for of, delta in deltas:
                        if name in delta:
                            self._advance(of, entries[name], delta[name], start, source, place)
                            source = place
                    if source is not place:
                        np.copyto(place, source)
            except OSError as error:
                raise _LostError(error) from error

        changed = {name for _, delta in deltas for name in delta}
        is_last = self._base is not None and bool(edges) and edges[0].base == self._base[0].number
        unchanged = frozenset(entries) - changed if is_last else frozenset()
        return Arriving(entries, fill, threads), unchanged, received + sum(edge.size for edge in edges)

    def _advance(
        self, of: str, entry: Entry, changed: Sequence[memoryview], start: int, source: Array, place: Array
    ) -> None:
        try:
            tensors.advance(entry, changed, start, source, place)
        except ValueError as error:
            self._view.bad.add(of)
            raise RemoteError(f"{of}: {error}") from error

    def _read_whole(
        self, source: str, entries: Mapping[str, Entry], ranges: Sequence[Range], places: Sequence[Array]
    ) -> None:
        """Read consecutive ranges of tensors from the object with all tensors of a version."""
        starts = [entries[name].offset + start for name, start, _ in ranges]
        end = starts[-1] + len(places[-1])
        content = np.frombuffer(self._bucket.get_range(source, starts[0], end), np.uint8) if end > starts[0] else _EMPTY
        for at, place in zip(starts, places, strict=True):
            np.copyto(place, content[at - starts[0] :][: len(place)])

    def _delta(self, edge: Edge, entries: Mapping[str, Entry]) -> Blocks:
        """Return the content of a delta object. A large delta is kept in a temporary file, not in memory."""
        if edge.size <= _PIECE:
            content = memoryview(self._bucket.get(edge.name, edge.size))
        else:
            content = self._gather(edge) if edge.size <= PORTION else self._spool(edge)
        try:
            return tensors.blocks(entries, content)
        except ValueError as error:
            self._view.bad.add(edge.name)
            raise RemoteError(f"{edge.name}: {error}") from error

    def _gather(self, edge: Edge) -> memoryview:
        content = bytearray(edge.size)

        def read(start: int) -> None:
            stop = min(start + _PIECE, edge.size)
            content[start:stop] = self._bucket.get_range(edge.name, start, stop)

        each(read, range(0, edge.size, _PIECE), threads=PARALLEL)
        return memoryview(content)

    def _spool(self, edge: Edge) -> memoryview:
        if (found := self._bucket.size(edge.name)) != edge.size:
            raise RemoteError(f"{edge.name}: expected {edge.size} bytes, found {found}")
        with tempfile.TemporaryFile() as file:

            def read(start: int) -> None:
                content = self._bucket.get_range(edge.name, start, min(start + PORTION, edge.size))
                while content:  # writing through a mapping would kill the process if the disk is full
                    start += (count := os.pwrite(file.fileno(), content, start))
                    content = content[count:]

            each(read, range(0, edge.size, PORTION), threads=PARALLEL)
            return memoryview(mmap.mmap(file.fileno(), edge.size, prot=mmap.PROT_READ))

    def _open(self, number: int) -> Bundle:
        if self._base is not None and self._base[0].number == number:
            return self._base[1]
        return self._store.open(self._store.find(number))

    def _graph(self, version: Version) -> bytes | None:
        """Return the graph of a version, if the local store has it undamaged; b"" for a version without a graph."""
        if not version.graph:
            return b""
        path = self._store.graph_file(version.graph)
        content = files.content(path, limit=files.MAX_MESSAGE) if path.is_file() else b""
        return content if store.has_checksum(content) else None

    def _add_graph(self, version: Version, manifest: Manifest) -> None:
        if not version.graph:
            return
        content = self._graph(version)
        if content is None:
            content = self._bucket.get(manifest.graph, files.MAX_MESSAGE)
            if not store.has_checksum(content):
                raise RemoteError(f"{manifest.graph}: expected a graph with its checksum, found other bytes")
        self._writer.add_graph(version.graph, content)

    def _commit(self, version: Version, arriving: Arriving, unchanged: frozenset[str]) -> None:
        self._sound.pop(version.number, None)
        try:
            self._writer.commit(version, arriving, unchanged=unchanged, chosen=self._chosen)
        except _LostError as lost:
            raise lost.error from lost
        self._list()
        self._sound[version.number] = self._stamps(version)
        try:
            self._base = version, self._store.open(version)
        except ParamsyncError:
            self._base = None


def read_manifest(bucket: Bucket, listed: Listed) -> Manifest:
    """Return the manifest of a listed version. Raises FileNotFoundError, RemoteError."""
    content = bucket.get(listed.manifest, manifests.LIMIT)
    return manifests.from_json(content, name=listed.manifest, digest=listed.digest)
