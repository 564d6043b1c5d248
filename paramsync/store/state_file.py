"""Keeps the state file, `checkpoint`, right for a publisher, whoever else changes it or removes versions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from paramsync.errors import CorruptCheckpointError, StoreError, UnreadableError
from paramsync.host import files
from paramsync.store import layout
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import index_file
from paramsync.version import Version

_log = logging.getLogger("paramsync.store")


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
        self._text: str | None = None  # of `checkpoint`
        self._names: tuple[str, ...] | None = None  # that the text lists; None before the first look
        self._graphs: dict[str, str | None] = {}  # by version; None where there is no record

    def names(self) -> tuple[str, ...]:
        """The listed names, and our unlisted ones. Raises StoreError."""
        try:
            text = layout.read_text(layout.state_file(self._directory))
            if self._names is not None and text == self._text:
                return self._names
            state = layout.read_state(self._directory)  # a stranger's, or of an earlier publisher
        except CorruptCheckpointError as error:
            return self._heal(error)
        return self._note(text, self._with_unlisted(state.names if state else ()))

    def publish(self, version: Version, names: tuple[str, ...]) -> None:
        """Replace `checkpoint` by one that lists these names, with the version as the latest. Raises OSError."""
        text = layout.state_text(layout.State(version.prefix, names))
        layout.write_text(layout.state_file(self._directory), text, durable=self._durable)
        self._text, self._names = text, names
        self._graphs[version.prefix] = version.graph

    def kept(self, names: Collection[str], keep: int) -> list[str]:
        """The names that stay listed beside one more version, where `keep` of ours are kept."""
        ours = [name for name in names if self._is_ours(name)]
        dropped = {*ours[: max(0, len(ours) + 1 - keep)], *self.gone(set(names) - set(ours))}
        return [name for name in names if name not in dropped]

    def gone(self, names: Collection[str]) -> set[str]:
        """The names of which no file is there any more."""
        if not names:
            return set()
        there = files.names(self._directory)
        begun = {file[:at] for file in there for at, letter in enumerate(file) if letter == "."}
        return set(names) - begun - set(there)

    def remains(self) -> list[Version]:
        """The records of versions whose index somebody removed, as a CheckpointManager does that takes them for its
        own."""
        found = self._unlisted(self.names())
        return [version for name, version in found if not index_file(self._directory / name).exists()]

    def highest(self) -> int:
        """The highest number that a listed name or a file of a version has, whatever became of the version, or -1."""
        found = [file.partition(".")[0] for file in _of_versions(files.names(self._directory))]
        return max(map(layout.number_of, [*found, *self.names()]), default=-1)

    def graph(self, name: str) -> str | None:
        """The graph's digest in a record, "" where the record is broken, None without one. Raises UnreadableError."""
        if name not in self._graphs:
            try:
                record = self._record(name)
                self._graphs[name] = record.graph if record else None
            except CorruptCheckpointError:
                self._graphs[name] = ""
        return self._graphs[name]

    def known_graph(self, name: str) -> str | None:
        """The graph's digest in a record that was read before; None where it is not known."""
        return self._graphs.get(name)

    def forget(self, but: Collection[str]) -> None:
        """Forget the graphs of all versions but these."""
        self._graphs = {name: graph for name, graph in self._graphs.items() if name in but}

    def _note(self, text: str | None, names: tuple[str, ...]) -> tuple[str, ...]:
        self._text, self._names, self._graphs = text, names, {}
        return names

    def _heal(self, error: CorruptCheckpointError) -> tuple[str, ...]:
        """Set a damaged `checkpoint` aside, and write it anew. Returns the names that it lists now."""
        known = self._names or ()
        gone = self.gone(known)
        names = self._with_unlisted([name for name in known if name not in gone])
        path, damaged = layout.state_file(self._directory), layout.damaged_state_file(self._directory)
        text: str | None = None
        with self._faults(f"{error}; it cannot be set aside"):
            files.keep_aside(path, damaged)
            if names:
                text = layout.state_text(layout.State(names[-1], names))
                layout.write_text(path, text, durable=self._durable)
            else:
                path.unlink(missing_ok=True)
            if self._durable:
                files.sync_directory(self._directory)
        said = f"written anew with {names[-1]} as the latest" if names else "no version of ours is there"
        _log.warning("%s: set aside as %s, %s", error, damaged.name, said)
        return self._note(text, names)

    def _with_unlisted(self, listed: Collection[str]) -> tuple[str, ...]:
        """Our versions that are whole, neither listed nor marked as rubbish, and the listed ones."""
        found = [name for name, version in self._unlisted(listed) if self._is_of_its_record(name, version)]
        whole = (name for name in found if index_file(self._directory / name).is_file())
        return (*sorted(whole, key=layout.number_of), *listed)

    def _unlisted(self, listed: Collection[str]) -> Iterator[tuple[str, Version]]:
        """The versions with a record that are neither listed nor marked as rubbish."""
        found = files.names(self._directory)
        known = {*listed, *(layout.marked(self._directory / file) for file in found if layout.is_mark(file))}
        for file in _of_versions(found):
            name = file.removesuffix(".json")
            if name == file or name in known:
                continue
            try:
                version = layout.read_record(self._directory, name)
            except (CorruptCheckpointError, StoreError):
                continue
            if version is not None:
                yield name, version

    def _record(self, name: str) -> Version | None:
        """The record of a version; None without one, or where somebody else wrote a checkpoint of that name over ours.

        Raises as `layout.read_record` does, and UnreadableError where nobody can tell now.
        """
        found = layout.read_record(self._directory, name)
        if found is not None and found.checksum:
            try:
                entries = index.read(index_file(self._directory / name)).entries
            except CorruptCheckpointError:
                return found  # broken, but nobody else's
            if index.digest(entries) != found.checksum:
                return None
        return found

    def _is_of_its_record(self, name: str, version: Version) -> bool:
        try:
            return self._record(name) == version
        except UnreadableError:  # it stays as it is, whatever it is
            return False

    def _is_ours(self, name: str) -> bool:
        """Whether our publisher wrote the version, as far as anybody can tell now."""
        try:
            return self.graph(name) is not None
        except UnreadableError:
            return False


def _of_versions(found: Collection[str]) -> Iterator[str]:
    return (file for file in found if file.startswith("ckpt-"))
