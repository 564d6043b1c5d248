"""Reads a store: which versions are published, which is the latest, and their parameters. Files of the directory:

checkpoint              TensorFlow's CheckpointState as text; replaced by rename, which publishes a version
checkpoint.damaged      the last `checkpoint` that was unreadable
ckpt-420.index  .data-* the parameters, complete before the rename
ckpt-420.json           the Version record
graph-<digest>.pb       a graph
graph-<...>.pb.damaged  a folder that had the name of a graph, and was moved aside
mirror.json             in a copy of a bucket: what its mirror says to followers (`paramsync.remote.copy_note`)
publisher.lock          locked by the publisher until it ends or dies; says who published last and when it ended
.tmp-*                  files being written
.spare-*                data files of versions that are gone, waiting to be overwritten
.unlisted-ckpt-420      marks a version that is being published or pruned, and is rubbish unless `checkpoint`
                        lists it; contains the digest of the version's graph
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

from paramsync.checkpoint.data_file import DataFile, FileStamp
from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError, StoreError, StoreLockedError, UnknownVersionError
from paramsync.host import files
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import index_file
from paramsync.v1 import bundle_pb2
from paramsync.version import Version

LOCK = "publisher.lock"

_LOCK_LIMIT = 1024  # the most bytes of the lock file that are read
_READERS_SECONDS = 1.0  # how long a publisher waits for readers of the lock
_STATE = "checkpoint"
_LOOKS = 10  # how often `latest` tries again if the state file has changed meanwhile
TEXT_LIMIT = 1 << 20  # the most bytes of a state file or a record
_NAME_LIMIT = 200  # bytes; file names have at most 255: leaves room for `.data-00000-of-00001` and `.tmp-`
_INT64 = 1 << 63
_YEAR_10000 = 253_402_300_800.0  # seconds since the epoch

# The checksum is field 15 of a graph message, after all other fields. Readers of the message skip it as unknown. No
# known field number differs from 15 by one bit, so a flipped bit cannot make it a known field.
_TAG = b"\x7a\x20"
_CHECKED = len(_TAG) + hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The content of `checkpoint`: the names of checkpoints in its directory, oldest first, and the latest of them."""

    latest: str
    names: tuple[str, ...]


class Store:
    """A follower's view of a store. It has no open files and no state, and may be used from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def latest(self) -> Version | None:
        """Return the latest version in `checkpoint`; None if nothing was published yet, or there is no directory.

        Raises StoreError for a path that cannot be read, CorruptCheckpointError if `checkpoint` or the version's record
        is broken, or if the version's files are missing.
        """
        state = read_state(self.path)
        for _ in range(_LOOKS):
            if state is None:
                return None
            version = self._version(state.latest)
            if version is not None:
                return version
            seen, state = state, read_state(self.path)
            if state == seen:  # otherwise the version was pruned after `checkpoint` was read
                break
        expected = f"the files of {seen.latest}"
        raise CorruptCheckpointError(state_file(self.path), expected=expected, found=self._in_place_of(seen.latest))

    def versions(self) -> list[Version]:
        """Return all versions that `checkpoint` lists and whose files exist, ascending.

        Leaves out a version whose record or index is broken or unreadable, so that other versions can be used. Raises
        as `latest` does if `checkpoint` itself cannot be used.
        """
        return self.listed(read_state(self.path))

    def listed(
        self, state: CheckpointState | None, known: Mapping[str, Version] = MappingProxyType({})
    ) -> list[Version]:
        """Return the versions that this state lists, as `versions` does. Reads no files of the `known` versions."""
        versions = {}
        begun = names = set(state.names if state else ())
        with suppress(OSError):  # the directory is gone, or cannot be listed
            begun = {file.rpartition(".")[0] for file in files.names(self.path)} if names else names
        for name in state.names if state else ():
            if name not in begun:  # skip without opening files: the list may name many removed versions
                continue
            try:
                version = known.get(name) or self._version(name)
            except (CorruptCheckpointError, StoreError):
                continue
            if version is not None:
                versions[version.number] = version
        return [versions[number] for number in sorted(versions)]

    def find(self, number: int) -> Version:
        """Return the version with this number. Raises UnknownVersionError, which lists the existing numbers."""
        versions = {version.number: version for version in self.versions()}
        if number not in versions:
            raise UnknownVersionError(str(self.path), number, versions)
        return versions[number]

    def open(
        self,
        version: Version,
        *,
        mapped: bool = True,
        frozen: bool = False,
        shared: Mapping[FileStamp, DataFile] = MappingProxyType({}),
    ) -> Bundle:
        """Open a version's parameters.

        Files are mapped if our publisher wrote them. Other writers overwrite files in use, so tensors from their files
        are copied when they are read. `mapped=False` maps no files at all. For `frozen` and `shared` see `Bundle.open`.
        Raises CorruptCheckpointError if the files are not a whole checkpoint, or do not fit the record;
        UnknownVersionError if the version was pruned after the caller learned of it.
        """
        try:
            mapped = mapped and bool(version.checksum)
            most = version.bytes if frozen else None  # the signed record limits the size
            bundle = Bundle.open(self.prefix(version), mapped=mapped, frozen=most, shared=shared)
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
        """Return the common prefix of the paths of a version's files. Raises StoreError for a path out of the store."""
        if not is_name(version.prefix):
            raise StoreError(self.path, f"expected a prefix in this directory, found {files.shown(version.prefix)}")
        return self.path / version.prefix

    def graph_file(self, digest: str) -> Path:
        """Return the path of the graph with this digest, whether it exists or not. Raises StoreError for other text."""
        if not is_digest(digest):
            raise StoreError(self.path, f"expected the hexadecimal digest of a graph, found {files.shown(digest)}")
        return graph_file(self.path, digest)

    def _in_place_of(self, name: str) -> str:
        """Describe what the directory has in place of the files of a version."""
        itself = re.compile(re.escape(name).replace(r"\?", "[0-9]"))  # a name with ??? stands for several files
        if not any(itself.fullmatch(name) for name in files.names(self.path)):
            return "no such files"
        return (
            f"{name} itself, in TensorFlow's V1 format, which cannot be read: leave out write_version where the Saver"
            " is made, for V2 is the default"
        )

    def _version(self, name: str) -> Version | None:
        """Return the version with this name; None if its files are missing."""
        # Pruning removes the index before the record. So read the record first: if it is missing and the index is still
        # there afterwards, the version never had a record.
        record = read_record(self.path, name)
        listing = index_file(self.path / name)
        try:
            with files.regular(listing) as descriptor:
                written = 0.0 if record else os.fstat(descriptor).st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            raise files.unread(listing, "an index file", error) from error
        number = number_of(name)
        return record or Version(
            number=number, step=number, prefix=name, step_done_at=written, snapshot_at=written, committed_at=written
        )


def state_file(directory: Path, name: str = _STATE) -> Path:
    return directory / name


def record_file(directory: Path, name: str) -> Path:
    return directory / f"{name}.json"


def graph_file(directory: Path, digest: str) -> Path:
    return directory / f"graph-{digest}.pb"


def is_name(text: str) -> bool:
    """Return whether the text can be the beginning of a file name. A path to another directory cannot."""
    return text not in ("", ".", "..") and "/" not in text and text.isprintable() and len(text.encode()) <= _NAME_LIMIT


def is_digest(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{1,128}", text) is not None


def number_of(name: str) -> int:
    """Return the number in a version's name: N for `...-N`, otherwise 0."""
    match = re.search(r"-([0-9]{1,18})\Z", name)
    return int(match[1]) if match else 0


def read_state(directory: Path, name: str = _STATE) -> CheckpointState | None:
    """Read `checkpoint`, whether or not the versions' files are there. None if nothing was published.

    TensorFlow may give the file another `name`. Raises StoreError if the file cannot be read; UnreadableError, which is
    a StoreError, if a later try may succeed; CorruptCheckpointError if it is malformed or leads out of the directory.
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
    """Return this state as text, which TensorFlow and `read_state` can read."""
    message = bundle_pb2.CheckpointState(model_checkpoint_path=state.latest, all_model_checkpoint_paths=state.names)
    return text_format.MessageToString(message)


def read_record(directory: Path, name: str) -> Version | None:
    """Return the record of the version with this name; None if it has none. Raises as `read_state` does."""
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
    """Check that all values of a record can be shown, sent and followed.

    Returns None, or what was expected and what was found in the first value that cannot.
    """
    if record.graph and not is_digest(record.graph):
        return "the hexadecimal digest of a graph", files.shown(record.graph)
    counts = (record.step, record.bytes, record.publications)
    if not all(0 <= count < _INT64 for count in counts):
        return "step, bytes and publications of 63 bits", files.shown(counts)
    times = [record.step_done_at, record.snapshot_at, record.committed_at or 0.0, record.serve_at or 0.0]
    if not all(abs(time) < _YEAR_10000 for time in times):  # the comparison is false for NaN, too
        return "times in seconds since the epoch", files.shown(times)
    if not all(isinstance(name, str) and name.isprintable() for name in record.metrics):
        return "metrics with names that can be shown", files.shown(dict(record.metrics))
    return None


def add_checksum(graph: bytes) -> bytes:
    """Append a checksum to a graph message that has none."""
    return graph + _TAG + hashlib.sha256(graph).digest()


def has_checksum(graph: bytes) -> bool:
    """Return whether a graph ends with the checksum of all bytes before it."""
    return graph[-_CHECKED:] == add_checksum(graph[:-_CHECKED])[-_CHECKED:]


def read_text(path: Path) -> str | None:
    """Return the text of a small file in a store; None if there is no such file. Raises as `read_state` does."""
    try:
        return files.content(path, limit=TEXT_LIMIT).decode()
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise StoreError(path.parent, "expected a directory, found a file") from error
    except OSError as error:
        raise files.unread(path, "a file of text", error) from error
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(path, expected="UTF-8 text", found=error.reason) from error


def _name(state: Path, listed: str) -> str:
    """Return the name of the version at this path in the file `checkpoint`.

    Only the last part of an absolute path counts, because the directory may have moved since.
    """
    path = PurePosixPath(listed)
    name = path.name if path.is_absolute() else str(path)
    if not is_name(name):
        raise CorruptCheckpointError(state, expected="paths in its directory", found=files.shown(listed))
    return name


def take_lock(store: Path) -> int:
    """Lock a store for its publisher. Returns the lock's descriptor. Raises StoreLockedError, which names the owner."""
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
    """Take the exclusive lock. Raises BlockingIOError if a publisher has it.

    Waits for readers, which share the lock for a moment, see `last_publisher`.
    """
    end = time.monotonic() + _READERS_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises unless only readers have the lock
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            if time.monotonic() > end:
                raise
        else:
            return


def holds_lock(descriptor: int, store: Path) -> bool:
    """Return whether this is still the lock of the store at this path. The directory may have been made anew.

    Raises OSError if the directory cannot be read now; the caller should then keep the lock.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), (store / LOCK).lstat())
    except OSError as error:
        if files.is_of_the_file(error):
            return False
        raise


def release_lock(descriptor: int, *, finished: bool = False) -> None:
    """Unlock, even if a forked child shares the descriptor. If a forked child calls this, the lock stays.

    With `finished`, note in the lock file that the publisher ended and did not die.
    """
    holder = _lock_content(descriptor)
    if holder and (holder["pid"], holder["host"]) == (os.getpid(), socket.gethostname()):
        if finished:
            with suppress(OSError):
                os.pwrite(descriptor, json.dumps({**holder, "ended": time.time()}).encode() + b"\n", 0)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


class PublisherState(Enum):
    TRAINING = "training"  # has the lock
    FINISHED = "finished"  # noted its end in the lock file, and released the lock
    DIED = "died"  # has the lock no more, but noted no end


@dataclass(frozen=True, slots=True)
class LastPublisher:
    """The last publisher of a store, when it began, and since when it has been in this state.

    The time of a publisher's death is unknown, so `since` of a dead publisher is `began`.
    """

    state: PublisherState
    began: float
    since: float


def last_publisher(store: Path) -> LastPublisher | None:
    """Return the last publisher. None if the lock file cannot be read, or was copied from another store.

    Takes a shared lock for a moment. A publisher that starts then has to wait, so do not call this for each request.
    """
    try:
        with files.regular(store / LOCK) as descriptor:
            # Try the lock before reading: a publisher writes that it ended before it unlocks, so the text is final.
            is_free = files.lock_shared(descriptor)
            holder = _lock_content(descriptor) or {}
            began = _seconds(holder.get("since")) or os.fstat(descriptor).st_mtime
            if not is_free:
                return LastPublisher(PublisherState.TRAINING, began, began)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # otherwise a forked child would keep the lock
            if holder.get("inode") != os.fstat(descriptor).st_ino:
                return None
    except (OSError, CorruptCheckpointError):
        return None
    ended_at = _seconds(holder.get("ended"))
    state = PublisherState.DIED if ended_at is None else PublisherState.FINISHED
    return LastPublisher(state, began, began if ended_at is None else ended_at)


def _seconds(value: object) -> float | None:
    """Return the value if it is a time, otherwise None."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < _YEAR_10000 else None


def lock_owner(store: Path) -> str:
    """Return the unique text that the last publisher wrote into the lock file; "" if there is none.

    Two paths with the same text, even on different machines, lead to the same store, or to a copy of it.
    """
    try:
        return files.content(store / LOCK, limit=_LOCK_LIMIT).decode(errors="replace").strip()
    except (OSError, CorruptCheckpointError):
        return ""


def _lock_content(descriptor: int) -> dict[str, object] | None:
    """Return the publisher's text in the lock file; None if another program wrote there."""
    try:
        values = json.loads(os.pread(descriptor, _LOCK_LIMIT, 0))
        return {**values, "pid": values["pid"], "host": values["host"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
