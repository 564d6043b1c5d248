"""Reads a store: which versions are published, which is the latest, and their parameters. The files of its directory:

checkpoint              TensorFlow's CheckpointState as text; replaced by rename, which publishes a version
checkpoint.damaged      the last `checkpoint` that could not be read
ckpt-420.index  .data-* the parameters, complete before that rename
ckpt-420.json           the Version record
graph-<digest>.pb       a graph; with .damaged, a folder that was in its place
publisher.lock          locked while there is a publisher, whose death ends the lock; says which, or which was the last,
                        and when that one ended, unless it died
.tmp-*                  files being written
.spare-*                data files of versions that are gone, waiting to be overwritten with those of another
.unlisted-ckpt-420      marks the files of this name as rubbish unless `checkpoint` lists it: the version is being
                        published, or pruned; says which graph it belongs to
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from google.protobuf import text_format

from paramsync.checkpoint import data_file
from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError, StoreError, StoreLockedError, UnknownVersionError
from paramsync.host import files
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import index_file
from paramsync.v1 import bundle_pb2
from paramsync.version import Version

LOCK = "publisher.lock"

_LOCK_LIMIT = 1024  # bytes
_READERS_SECONDS = 1.0  # that a publisher waits for those who look at the lock
_STATE = "checkpoint"
_MARK = ".unlisted-"
_LOOKS = 10  # how often `latest` follows a state file that is replaced faster than it can be followed
_TEXT_LIMIT = 1 << 20  # bytes of a state file or a record
_NAME_LIMIT = 200  # bytes of 255, so that `.data-00000-of-00001` fits behind and `.tmp-` in front
_INT64 = 1 << 63
_YEAR_10000 = 253_402_300_800.0  # seconds since the epoch

# Field 15 of a graph message, of 32 bytes, behind all others: readers of the message skip it. The number of no field
# that they know differs from it by one bit alone.
_TAG = b"\x7a\x20"
_SEAL = len(_TAG) + hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The content of `checkpoint`: names of checkpoints in its directory, oldest first; the latest is among them."""

    latest: str
    names: tuple[str, ...]


class Store:
    """A follower's view of a store. Holds no open file and no state; safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def latest(self) -> Version | None:
        """The version that `checkpoint` names; None where nothing was published yet, not even the directory made.

        Raises StoreError for a path that cannot be read, CorruptCheckpointError where `checkpoint`, or the record it
        leads to, is broken, or the files it names are not there.
        """
        state = read_state(self.path)
        for _ in range(_LOOKS):
            if state is None:
                return None
            version = self._version(state.latest)
            if version is not None:
                return version
            seen, state = state, read_state(self.path)
            if state == seen:  # else what it named was pruned after it was read
                break
        expected = f"the files of {seen.latest}"
        raise CorruptCheckpointError(state_file(self.path), expected=expected, found=self._in_place_of(seen.latest))

    def versions(self) -> list[Version]:
        """All versions that `checkpoint` lists and whose files are there, ascending.

        A version whose record or index is broken or unreadable is left out, so that it hides no other. Raises as
        `latest` does where `checkpoint` itself cannot be used.
        """
        return self.listed(read_state(self.path))

    def listed(
        self, state: CheckpointState | None, known: Mapping[str, Version] = MappingProxyType({})
    ) -> list[Version]:
        """The versions that this state lists, as `versions` has them; files of those that are `known` are not read."""
        versions = {}
        begun = names = set(state.names if state else ())
        with suppress(OSError):  # of a directory that is gone, or that cannot be listed
            begun = {file.rpartition(".")[0] for file in files.names(self.path)} if names else names
        for name in state.names if state else ():
            if name not in begun:  # a list may name many that are gone
                continue
            try:
                version = known.get(name) or self._version(name)
            except (CorruptCheckpointError, StoreError):
                continue
            if version is not None:
                versions[version.number] = version
        return [versions[number] for number in sorted(versions)]

    def find(self, number: int) -> Version:
        """The version of that number. Raises UnknownVersionError, which lists those that are there."""
        versions = {version.number: version for version in self.versions()}
        if number not in versions:
            raise UnknownVersionError(str(self.path), number, versions)
        return versions[number]

    def open(
        self,
        version: Version,
        *,
        mapped: bool = True,
        sealed: bool = False,
        find: data_file.FindMapped | None = None,
    ) -> Bundle:
        """Hold a version's parameters: mapped where our publisher recorded them, else copied as they are asked for.

        Other writers overwrite files that are in use. `mapped=False` maps nothing, whoever wrote it. For `find` and
        `sealed` see `Bundle.open`. Raises CorruptCheckpointError where the files are not a whole checkpoint, or not the
        recorded one, UnknownVersionError where the version was pruned after the caller learned of it.
        """
        try:
            mapped = mapped and bool(version.checksum)
            most = version.bytes if sealed else None  # of a record that is signed
            bundle = Bundle.open(self.prefix(version), mapped=mapped, sealed=most, find=find)
        except CorruptCheckpointError as error:
            state = read_state(self.path)
            if state is None or version.prefix not in state.names or not index_file(self.prefix(version)).exists():
                known = [other.number for other in self.versions()]
                raise UnknownVersionError(str(self.path), version.number, known) from error
            raise
        if version.checksum and version.checksum != index.digest(bundle.entries):
            record = record_file(self.path, version.prefix)
            expected = f"the record of the parameters in {version.prefix}"
            raise CorruptCheckpointError(record, expected=expected, found="that of others")
        return bundle

    def prefix(self, version: Version) -> Path:
        """The path with which a version's files begin. Raises StoreError where it would lie outside the store."""
        if not is_name(version.prefix):
            raise StoreError(self.path, f"expected a prefix in this directory, found {files.shown(version.prefix)}")
        return self.path / version.prefix

    def graph_file(self, digest: str) -> Path:
        """The path of the graph of that digest, whether it is there or not. Raises StoreError for what is no digest."""
        if not is_digest(digest):
            raise StoreError(self.path, f"expected the hexadecimal digest of a graph, found {files.shown(digest)}")
        return graph_file(self.path, digest)

    def _in_place_of(self, name: str) -> str:
        """What is there in place of the files of a version."""
        itself = re.compile(re.escape(name).replace(r"\?", "[0-9]"))  # where it is in several files
        if not any(itself.fullmatch(name) for name in files.names(self.path)):
            return "no such files"
        return (
            f"{name} itself, in TensorFlow's V1 format, which cannot be read: leave out write_version where the Saver"
            " is made, for V2 is the default"
        )

    def _version(self, name: str) -> Version | None:
        """The version of that name; None where its files are not there."""
        # The record is read first: pruning takes the index away first, so that a record missing beside an index that
        # is still there afterwards can only mean that there never was one.
        record = read_record(self.path, name)
        listing = index_file(self.path / name)
        try:
            with files.regular(listing) as descriptor:
                written = 0.0 if record else os.fstat(descriptor).st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            raise files.unread(listing, "an index file", error) from error
        return record or unrecorded(name, written)


def state_file(directory: Path, name: str = _STATE) -> Path:
    return directory / name


def record_file(directory: Path, name: str) -> Path:
    return directory / f"{name}.json"


def graph_file(directory: Path, digest: str) -> Path:
    return directory / f"graph-{digest}.pb"


def mark(directory: Path, name: str) -> Path:
    """The file that marks a version as rubbish unless `checkpoint` lists it."""
    return directory / f"{_MARK}{name}"


def marked(file: str) -> str | None:
    """The name of the version that a file marks; None for a file that is no mark."""
    return file.removeprefix(_MARK) if file.startswith(_MARK) else None


def is_name(text: str) -> bool:
    """Whether the text can begin the names of files in a directory, and of none outside it."""
    return text not in ("", ".", "..") and "/" not in text and text.isprintable() and len(text.encode()) <= _NAME_LIMIT


def is_digest(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{1,128}", text) is not None


def number_of(name: str) -> int:
    """The number of the version that a name stands for: N of `...-N`, 0 without one."""
    match = re.search(r"-([0-9]{1,18})\Z", name)
    return int(match[1]) if match else 0


def is_ours(name: str) -> bool:
    """Whether our publisher would give a version this name."""
    return re.fullmatch("ckpt-[0-9]{1,18}", name) is not None


def read_state(directory: Path, name: str = _STATE) -> CheckpointState | None:
    """Read `checkpoint`, whether or not the files are there. None where nothing was published.

    TensorFlow can be told to give that file another `name`. Raises StoreError where it cannot be read (UnreadableError:
    now), CorruptCheckpointError where it is malformed or leads elsewhere.
    """
    path = state_file(directory, name)
    if (text := read_text(path)) is None:
        return None
    try:
        message = text_format.Parse(text, bundle_pb2.CheckpointState(), allow_unknown_field=True)
    except (text_format.ParseError, RecursionError) as error:
        raise CorruptCheckpointError(path, expected="a CheckpointState", found=files.shown(error)) from error
    if not message.model_checkpoint_path:
        return None
    names = [_name(path, listed) for listed in (*message.all_model_checkpoint_paths, message.model_checkpoint_path)]
    return CheckpointState(names[-1], tuple(dict.fromkeys(names)))


def state_text(state: CheckpointState) -> str:
    """The text from which TensorFlow and `read_state` read that state."""
    message = bundle_pb2.CheckpointState(model_checkpoint_path=state.latest, all_model_checkpoint_paths=state.names)
    return text_format.MessageToString(message)


def read_record(directory: Path, name: str) -> Version | None:
    """The record of the version of that name, None where it has none. Raises as `read_state` does."""
    path = record_file(directory, name)
    if (text := read_text(path)) is None:
        return None
    try:
        record = Version.from_json(text)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(path, expected="the record of a version", found=files.shown(error)) from error
    if (record.prefix, record.number) != (name, number_of(name)):
        found = f"that of {files.shown(record.prefix)}, {files.shown(record.number)}"
        raise CorruptCheckpointError(path, expected=f"the record of {name!r}, {number_of(name)}", found=found)
    if wrong := problem(record):
        raise CorruptCheckpointError(path, expected=wrong[0], found=wrong[1])
    return record


def problem(record: Version) -> tuple[str, str] | None:
    """What a record should say and what it says instead, where nobody could show, send or follow it."""
    if record.graph and not is_digest(record.graph):
        return "the hexadecimal digest of a graph", files.shown(record.graph)
    counts = (record.step, record.bytes, record.publications)
    if not all(0 <= count < _INT64 for count in counts):
        return "step, bytes and publications of 63 bits", files.shown(counts)
    times = [record.step_done_at, record.snapshot_at, record.committed_at or 0.0]
    if not all(abs(time) < _YEAR_10000 for time in times):  # nor is NaN
        return "times in seconds since the epoch", files.shown(times)
    if not all(isinstance(name, str) and name.isprintable() for name in record.metrics):
        return "metrics with names that can be shown", files.shown(dict(record.metrics))
    return None


def sealed(graph: bytes) -> bytes:
    """A graph message that has no checksum, followed by one."""
    return graph + _TAG + hashlib.sha256(graph).digest()


def is_sealed(graph: bytes) -> bool:
    """Whether a graph ends with the checksum of all bytes before it."""
    return graph[-_SEAL:] == sealed(graph[:-_SEAL])[-_SEAL:]


def unrecorded(name: str, written: float) -> Version:
    """The version that a checkpoint written by TensorFlow stands for."""
    number = number_of(name)
    return Version(
        number=number, step=number, prefix=name, step_done_at=written, snapshot_at=written, committed_at=written
    )


def read_text(path: Path) -> str | None:
    """The text of a small file in a store, None where it is not there. Raises as `read_state` does."""
    try:
        return files.content(path, limit=_TEXT_LIMIT).decode()
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise StoreError(path.parent, "expected a directory, found a file") from error
    except OSError as error:
        raise files.unread(path, "a file of text", error) from error
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(path, expected="UTF-8 text", found=error.reason) from error


def write_text(path: Path, text: str, *, durable: bool) -> None:
    """Write a small file in a store, whole at any moment. Raises OSError, StoreError for more than can be read."""
    encoded = text.encode()
    if len(encoded) > _TEXT_LIMIT:
        raise StoreError(path.parent, f"{path.name}: expected at most {_TEXT_LIMIT} bytes, found {len(encoded)}")
    with files.aside(path, durable=durable) as file:
        file.write(encoded)


def _name(state: Path, listed: str) -> str:
    """The name of a path in `checkpoint`. An absolute path may be older than a move of the directory."""
    path = PurePosixPath(listed)
    name = path.name if path.is_absolute() else str(path)
    if not is_name(name):
        raise CorruptCheckpointError(state, expected="paths in its directory", found=files.shown(listed))
    return name


def take_lock(store: Path) -> int:
    """Take the lock; returns the descriptor that holds it. Raises StoreLockedError, which names the holder, OSError."""
    descriptor = os.open(store / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        _lock_alone(descriptor)
        os.ftruncate(descriptor, 0)
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "id": uuid.uuid4().hex,
            "since": time.time(),
            "inode": os.fstat(descriptor).st_ino,
        }
        os.pwrite(descriptor, json.dumps(owner).encode() + b"\n", 0)
    except BlockingIOError as error:
        holder = _lock_content(descriptor)
        os.close(descriptor)
        who = f"process {holder['pid']} on {holder['host']}" if holder else "which did not say who it is"
        raise StoreLockedError(store, who) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock_alone(descriptor: int) -> None:
    """Raises BlockingIOError where a publisher has the lock. Readers share it for a moment, see `last_publisher`."""
    end = time.monotonic() + _READERS_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # which a publisher shares with nobody
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            if time.monotonic() > end:
                raise
        else:
            return


def holds_lock(descriptor: int, store: Path) -> bool:
    """Whether the lock is still that of the store at this path, whose directory may have been removed and made again.

    Raises OSError where nobody can tell now: that is no reason to give the lock back.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), (store / LOCK).lstat())
    except OSError as error:
        if files.is_of_the_file(error):
            return False
        raise


def release_lock(descriptor: int, *, finished: bool = False) -> None:
    """Give the lock back, even where a forked child has the descriptor too; such a child only closes its own.

    With `finished`, the lock says that its holder ended as it should.
    """
    holder = _lock_content(descriptor)
    if holder and (holder["pid"], holder["host"]) == (os.getpid(), socket.gethostname()):
        if finished:
            with suppress(OSError):
                os.pwrite(descriptor, json.dumps({**holder, "ended": time.time()}).encode() + b"\n", 0)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


class PublisherState(Enum):
    TRAINING = "training"  # it has the lock
    FINISHED = "finished"  # it gave the lock back
    DIED = "died"  # it lost the lock


@dataclass(frozen=True, slots=True)
class LastPublisher:
    """What became of the last publisher of a store, when it began, and since when that is so.

    Of one that died the lock does not say since when: then `since` is when it began, too.
    """

    state: PublisherState
    began: float
    since: float


def last_publisher(store: Path) -> LastPublisher | None:
    """None where the store has no publisher's lock that can be read, or a copy of one.

    Shares the lock for a moment, so that it must not be called on the way of a request.
    """
    try:
        with files.regular(store / LOCK) as descriptor:
            is_free = files.lock_shared(descriptor)  # first: a publisher writes that it ended before it lets go
            holder = _lock_content(descriptor) or {}
            began = _seconds(holder.get("since")) or os.fstat(descriptor).st_mtime
            if not is_free:
                return LastPublisher(PublisherState.TRAINING, began, began)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # for a forked child would keep it
            if holder.get("inode") != os.fstat(descriptor).st_ino:
                return None
    except (OSError, CorruptCheckpointError):
        return None
    ended_at = _seconds(holder.get("ended"))
    state = PublisherState.DIED if ended_at is None else PublisherState.FINISHED
    return LastPublisher(state, began, began if ended_at is None else ended_at)


def _seconds(value: object) -> float | None:
    """A time that somebody wrote, where it is one."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < _YEAR_10000 else None


def lock_owner(store: Path) -> str:
    """The text that the last publisher wrote into the lock, which no two of them share; "" where there was none.

    It tells whether two paths, perhaps on different machines, lead to one store, or a copy of it.
    """
    try:
        return files.content(store / LOCK, limit=_LOCK_LIMIT).decode(errors="replace").strip()
    except (OSError, CorruptCheckpointError):
        return ""


def _lock_content(descriptor: int) -> dict[str, object] | None:
    """What the holder wrote into the lock; None where a stranger wrote there."""
    try:
        values = json.loads(os.pread(descriptor, _LOCK_LIMIT, 0))
        return {**values, "pid": values["pid"], "host": values["host"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
