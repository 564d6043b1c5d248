"""The state file of a store, `checkpoint`: which versions it lists, and which stay listed after a new version."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from paramsync.errors import CorruptCheckpointError, SettingsError, StoreError, UnreadableError
from paramsync.host import files
from paramsync.store import store
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import index_file
from paramsync.version import Version

MARK = ".unlisted-"
MOST_BY_AGE = 1000  # most versions kept by age: each look at the store and each publication reads their names

_log = logging.getLogger("paramsync.store")
# stands for a record that cannot be read
_BROKEN = Version(number=0, step=0, prefix="", step_done_at=0.0, snapshot_at=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which versions stay in a store: the `keep` newest versions, and older versions by age.

    With `keep_for`, an older version stays for this many seconds after its publication. With `keep_every`, only the
    first older version of each period of this many seconds stays. Hourly versions for a day:

        Retention(keep=5, keep_for=86400, keep_every=3600)

    Raises SettingsError for settings that contradict each other.
    """

    keep: int = 5
    keep_for: float | None = None
    keep_every: float | None = None

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise SettingsError(f"keep: expected at least 1 version, found {self.keep}")
        if self.keep_for is not None and not self.keep_for > 0:
            raise SettingsError(f"keep_for: expected seconds above 0, found {self.keep_for}")
        if self.keep_every is not None and not self.keep_every > 0:
            raise SettingsError(f"keep_every: expected seconds above 0, found {self.keep_every}")
        if self.keep_every is not None and self.keep_for is None:
            raise SettingsError(f"keep_every: expected keep_for with it, found {self.keep_every} alone")

    def drop(self, versions: Sequence[tuple[str, float]], *, now: float) -> set[str]:
        """Return the names to drop when another version is published now. `versions` has names and times, oldest first.

        A version whose time is more than `keep_for` seconds in the future does not stay by age: its clock was wrong.
        """
        older = versions[: max(0, len(versions) + 1 - self.keep)]
        stay: dict[int, str] = {}
        for at, (name, committed_at) in enumerate(older):
            if self.keep_for is not None and abs(now - committed_at) <= self.keep_for:
                stay.setdefault(at if self.keep_every is None else int(committed_at // self.keep_every), name)
        return {name for name, _ in older}.difference([*stay.values()][-MOST_BY_AGE:])


class StateFile:
    """The publisher's view of `checkpoint`, which lists versions, oldest first. The publisher's thread owns it.

    - A version without a record, or with a record of other parameters, counts as written by TensorFlow. It stays listed
      while its files exist.
    - If another program removed one of our versions from the list, the version is listed again.
    - A damaged `checkpoint` is moved aside. The new file lists the versions that this publisher last knew, and all our
      complete versions.
    """

    def __init__(
        self, directory: Path, *, durable: bool, faults: Callable[[str], AbstractContextManager[object]]
    ) -> None:
        """`faults(problem)` turns an OSError in its block into a StoreError that begins with the problem."""
        self._directory = directory
        self._durable = durable
        self._faults = faults
        self._state: store.CheckpointState | None = None  # the last content of `checkpoint`
        self._names: tuple[str, ...] | None = None  # the result of `read_names`; None: not read yet
        self._text: str | None = None  # the text that this object wrote last: comparing texts is faster than parsing
        self._records: dict[str, Version | None] = {}  # by name; None for a version without a record

    def read_names(self) -> tuple[str, ...]:
        """Return the names in `checkpoint`, and of our complete versions that it does not list. Raises StoreError."""
        try:
            text = store.read_text(store.state_file(self._directory))
            if self._names is not None and text is not None and text == self._text:
                return self._names
            self._text = None
            state = store.read_state(self._directory)
        except CorruptCheckpointError as error:
            return self._heal(error)
        if self._names is None or state != self._state:  # another program or an earlier publisher wrote the file
            self._state, self._names, self._records = state, self._with_unlisted(state.names if state else ()), {}
        return self._names

    def publish(self, version: Version, names: tuple[str, ...]) -> None:
        """Replace `checkpoint` by rename. The new file lists these names, among them the version's. Raises OSError."""
        self.list_only(names)
        self._records = {name: self._records[name] for name in names if name in self._records}
        self._records[version.prefix] = version

    def keep(
        self, names: Collection[str], retention: Retention, *, now: float, chosen: Collection[int] = ()
    ) -> list[str]:
        """Return the names that stay listed when a version is added. `retention` applies only to our versions.

        Versions with `chosen` numbers stay, too.
        """
        ours = {}
        gone = self.find_gone(names)
        for name in (name for name in names if name not in gone and store.number_of(name) not in chosen):
            with suppress(UnreadableError):  # keep the version: it is unknown now whether we wrote it
                if (record := self._known(name)) is not None:
                    ours[name] = record.committed_at or 0.0
        dropped = {*retention.drop([*ours.items()], now=now), *gone}
        return [name for name in names if name not in dropped]

    def find_gone(self, names: Collection[str]) -> set[str]:
        """Return the names whose versions have no file left."""
        if not names:
            return set()
        there = files.names(self._directory)
        begun = {file[:at] for file in there for at, letter in enumerate(file) if letter == "."}
        return set(names) - begun - set(there)

    def find_remains(self) -> list[Version]:
        """Return the records of unlisted versions whose index is gone, for example removed by a CheckpointManager."""
        unlisted = self._unlisted(self.read_names())
        return [version for name, version in unlisted if not index_file(self._directory / name).exists()]

    def highest(self) -> int:
        """Return the highest number of all listed names and all files of versions; -1 if there are none."""
        begun = [file.partition(".")[0] for file in files.names(self._directory) if file.startswith("ckpt-")]
        return max(map(store.number_of, [*begun, *self.read_names()]), default=-1)

    def graph(self, name: str) -> str | None:
        """Return the graph's digest in a version's record; "" if it is broken, None if there is none.

        Raises UnreadableError.
        """
        record = self._known(name)
        return None if record is None else record.graph

    def _known(self, name: str) -> Version | None:
        """Return the record of a version, read once; None if it has no record. Raises UnreadableError."""
        if name not in self._records:
            try:
                self._records[name] = self._record(name)
            except CorruptCheckpointError:
                self._records[name] = _BROKEN
        return self._records[name]

    def _heal(self, error: CorruptCheckpointError) -> tuple[str, ...]:
        """Move a damaged `checkpoint` aside, and write a new file. Returns the names that the new file lists."""
        known = self._names or ()
        gone = self.find_gone(known)
        names = self._with_unlisted([name for name in known if name not in gone])
        path = store.state_file(self._directory)
        damaged = path.with_name(f"{path.name}.damaged")
        with self._faults(f"{error}; it cannot be set aside"):
            files.keep_aside(path, damaged)
            self.list_only(names)
            if self._durable:
                files.sync_directory(self._directory)
        outcome = f"written anew with {names[-1]} as the latest" if names else "no version of ours is there"
        _log.warning("%s: set aside as %s, %s", error, damaged.name, outcome)
        self._records = {}
        return names

    def list_only(self, names: tuple[str, ...]) -> None:
        """Replace `checkpoint`, with the last of these names as the latest, or remove it. Raises OSError."""
        if not names:
            self._state, self._names, self._text = None, (), None
            store.state_file(self._directory).unlink(missing_ok=True)
            return
        state = store.CheckpointState(names[-1], names)
        text = store.state_text(state)
        write_text(store.state_file(self._directory), text, durable=self._durable)
        self._state, self._names, self._text = state, names, text

    def _with_unlisted(self, listed: Collection[str]) -> tuple[str, ...]:
        """Return the listed names, and the names of our complete versions that are neither listed nor marked."""
        whole = []
        for name, version in self._unlisted(listed):
            with suppress(UnreadableError):  # a version that cannot be read now is left as it is
                if self._record(name) == version and index_file(self._directory / name).is_file():
                    whole.append(name)
        return (*sorted(whole, key=store.number_of), *listed)

    def _unlisted(self, listed: Collection[str]) -> Iterator[tuple[str, Version]]:
        """Yield the versions with a record that are neither listed nor marked as rubbish."""
        names = files.names(self._directory)
        known = {*listed, *map(marked_name, names)}
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
        """Read the record of a version; None if there is none, or if another program overwrote the version's files.

        Raises as `store.read_record` does, and UnreadableError if the index cannot be read now.
        """
        record = store.read_record(self._directory, name)
        if record is not None and record.checksum:
            try:
                entries = index.read(index_file(self._directory / name)).entries
            except CorruptCheckpointError:
                return record  # the index is broken, but the version is ours
            if index.digest(entries) != record.checksum:
                return None
        return record


def mark_file(directory: Path, name: str) -> Path:
    """Return the path of a version's mark. A marked version is rubbish unless `checkpoint` lists it."""
    return directory / f"{MARK}{name}"


def marked_name(file: str) -> str | None:
    """Return the name of the version that a file marks; None if the file is no mark."""
    return file.removeprefix(MARK) if file.startswith(MARK) else None


def write_text(path: Path, text: str, *, durable: bool) -> None:
    """Write a small file of a store, by rename. Raises OSError, StoreError for a text that is too large to be read."""
    encoded = text.encode()
    if len(encoded) > store.TEXT_LIMIT:
        raise StoreError(path.parent, f"{path.name}: expected at most {store.TEXT_LIMIT} bytes, found {len(encoded)}")
    with files.aside(path, durable=durable) as file:
        file.write(encoded)
