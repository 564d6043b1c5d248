"""`paramsync versions`: lists the versions in a store, their sizes, and the processes that hold them."""

from __future__ import annotations

import glob
import os
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from paramsync.cli import formatting
from paramsync.cli.formatting import NOTHING, console, duration, size, to_json
from paramsync.errors import CorruptCheckpointError, StoreError, UnknownVersionError, UnreadableError
from paramsync.host import files
from paramsync.remote.bucket import is_address
from paramsync.store.store import LOCK, Store, read_state, record_file
from paramsync.version import Version

_NAMED = 3  # most files that an error names


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """One version.

    `bytes`, `bytes_written` and `finite` are from the version's record; None if TensorFlow wrote the version.
    `file_bytes` is the size of its data files. `shared_bytes` is the size of the data files that other versions share.
    `held_by` has the ids of processes that use its files; None if the kernel does not show the processes. `signed_by`
    is the key that the record names. Only `verify` checks the signature.
    """

    number: int
    step: int
    latest: bool
    committed_at: float | None
    bytes: int | None
    bytes_written: int | None
    finite: bool | None
    file_bytes: int
    shared_bytes: int
    held_by: list[int] | None
    signed_by: str | None


def run(arguments: Namespace) -> bool:
    """Return True if every listed version can be opened."""
    if is_address(arguments.store):
        from paramsync.cli import bucket  # here, because most stores are directories

        return bucket.versions(arguments)
    path = Path(arguments.store)
    latest, versions, broken = look(path)
    broken += [version.prefix for version in versions if not _is_whole(path, version)]
    rows = [_row(path, version, latest=version.prefix == latest) for version in versions]
    on_disk = _on_disk(path)
    if arguments.json:
        listed = {"store": str(path), "bytes_on_disk": on_disk, "versions": [asdict(row) for row in rows]}
        sys.stdout.write(to_json(listed | {"broken": broken}))
        return not broken
    screen = console()
    count = f"{len(rows)} version{'' if len(rows) == 1 else 's'}" if rows else "nothing published yet"
    screen.print(f"{path}: {count}, {size(on_disk)} on disk", style="bold", soft_wrap=True)
    if rows:
        screen.print(_table(rows, time.time()))
        for line in formatting.signed({row.number: row.signed_by for row in rows}):
            screen.print(line)
    for name in broken:
        screen.print(f"{files.shown(name)} is listed, but its files are broken or gone", style="red", soft_wrap=True)
    return not broken


def look(path: Path) -> tuple[str | None, list[Version], list[str]]:
    """Return the name of the latest version, all readable versions, and the names of listed but unreadable versions.

    Raises StoreError if `path` is not a store, CorruptCheckpointError if the file `checkpoint` is broken.
    """
    before = read_state(path)
    versions = Store(path).versions()
    after = read_state(path)
    if before is None or after is None:
        try:
            there = [file.name for file in path.iterdir()]
        except OSError as error:
            raise StoreError(path, f"cannot be read: {error.strerror}") from error
        if there and LOCK not in there:  # a publisher leaves its lock file in every store
            raise StoreError(path, f"is no store: expected a file 'checkpoint' in it, found {_some(there)}")
        return None, [], []
    readable = {version.prefix for version in versions}
    # A name that is in only one of the two states was published or pruned meanwhile.
    return after.latest, versions, [name for name in before.names if name in after.names and name not in readable]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(map(files.shown, sorted(names)[:_NAMED]))}{more}"


def _is_whole(path: Path, version: Version) -> bool:
    """Whether the index can be read and the data files have the right size. True for a version pruned meanwhile."""
    try:
        Store(path).open(version, mapped=False)
    except (CorruptCheckpointError, UnreadableError):
        return False
    except UnknownVersionError:
        pass
    return True


def _row(path: Path, version: Version, *, latest: bool) -> VersionRow:
    data = list(_data_files(path, version.prefix))
    recorded = record_file(path, version.prefix).exists()
    locks = shared_locks()
    return VersionRow(
        number=version.number,
        step=version.step,
        latest=latest,
        committed_at=version.committed_at,
        bytes=version.bytes if recorded else None,
        bytes_written=version.bytes_written if recorded else None,
        finite=version.finite if recorded else None,
        file_bytes=sum(file.st_size for file in data),
        shared_bytes=sum(file.st_size for file in data if file.st_nlink > 1),
        held_by=None if locks is None else holders_of(data, locks),
        signed_by=version.signed_by or None,
    )


def _data_files(path: Path, name: str) -> Iterator[os.stat_result]:
    for file in path.glob(f"{glob.escape(name)}.data-*"):
        try:
            yield file.lstat()
        except FileNotFoundError:  # pruned meanwhile
            continue


def _on_disk(path: Path) -> int:
    """Return the bytes on disk of all files in the directory. A file with several names counts once."""
    taken = {}
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            taken[status.st_ino] = status.st_blocks * 512
    return sum(taken.values())


def _table(rows: Sequence[VersionRow], now: float) -> Table:
    numbers = ("version", "step", "age", "size", "written", "shared")
    table = formatting.table(*numbers, "held by", "", right=numbers)
    for row in reversed(rows):
        table.add_row(
            str(row.number),
            str(row.step),
            NOTHING if row.committed_at is None else duration(max(0.0, now - row.committed_at)),
            size(row.file_bytes if row.bytes is None else row.bytes),
            NOTHING if row.bytes_written is None else size(row.bytes_written),
            size(row.shared_bytes),
            NOTHING if not row.held_by else ", ".join(map(str, row.held_by)),
            Text("latest", "bold green") if row.latest else "",
        )
    return table


_File = tuple[int, int, int]  # major and minor number of the device, inode

LOCKS = Path("/proc/locks")


def shared_locks(locks: Path = LOCKS) -> Mapping[_File, frozenset[int]] | None:
    """Return the processes with a shared lock on each file, as far as the kernel shows locks; None if it shows none."""
    try:
        lines = locks.read_text().splitlines()
    except OSError:
        return None
    holders: defaultdict[_File, set[int]] = defaultdict(set)
    for line in lines:
        words = line.split()
        if words[1:4] == ["FLOCK", "ADVISORY", "READ"]:  # lines of waiting requests have `->` before these words
            major, minor, inode = words[5].split(":")
            holders[int(major, 16), int(minor, 16), int(inode)].add(int(words[4]))
    return {file: frozenset(processes) for file, processes in holders.items()}


def holders_of(files: Iterable[os.stat_result], locks: Mapping[_File, frozenset[int]]) -> list[int]:
    """Return the processes that have a lock on any of the files, in ascending order."""
    identities = [(os.major(file.st_dev), os.minor(file.st_dev), file.st_ino) for file in files]
    return sorted(frozenset().union(*(locks.get(identity, ()) for identity in identities)))
