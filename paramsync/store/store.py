"""Reads a store: which versions are published, which is the latest, and their parameters."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from paramsync.checkpoint import data_file
from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError, StoreError, UnknownVersionError
from paramsync.host import files
from paramsync.store import layout
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import index_file
from paramsync.version import Version

_LOOKS = 10  # how often `latest` follows a state file that is replaced faster than it can be followed


class Store:
    """A follower's view of a store. Holds no open file and no state; safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def latest(self) -> Version | None:
        """The version that `checkpoint` names; None where nothing was published yet, not even the directory made.

        Raises StoreError for a path that cannot be read, CorruptCheckpointError where `checkpoint`, or the record it
        leads to, is broken, or the files it names are not there.
        """
        state = layout.read_state(self.path)
        for _ in range(_LOOKS):
            if state is None:
                return None
            version = self._version(state.latest)
            if version is not None:
                return version
            seen, state = state, layout.read_state(self.path)
            if state == seen:  # else what it named was pruned after it was read
                break
        expected = f"the files of {seen.latest}"
        raise CorruptCheckpointError(
            layout.state_file(self.path), expected=expected, found=self._in_place_of(seen.latest)
        )

    def versions(self) -> list[Version]:
        """All versions that `checkpoint` lists and whose files are there, ascending.

        A version whose record or index is broken or unreadable is left out, so that it hides no other. Raises as
        `latest` does where `checkpoint` itself cannot be used.
        """
        return self._listed(layout.read_state(self.path))

    def published(
        self, known: Callable[[Collection[str]], Mapping[str, Version]]
    ) -> tuple[Version | None, list[Version]]:
        """Both `latest` and `versions`, from one look at each file where nothing changes meanwhile.

        `known` gets the listed names and returns the versions that the caller knows already, whose files are not read.
        Raises as `versions` does; the latest is None too where `latest` alone would raise.
        """
        state = layout.read_state(self.path)
        versions = self._listed(state, known(state.names) if state else {})
        if state is None:
            return None, versions
        return next((version for version in versions if version.prefix == state.latest), None), versions

    def find(self, number: int) -> Version:
        """The version of that number. Raises UnknownVersionError, which lists those that are there."""
        versions = {version.number: version for version in self.versions()}
        if number not in versions:
            raise UnknownVersionError(str(self.path), number, versions)
        return versions[number]

    def open(self, version: Version, *, mapped: bool = True, find: data_file.FindMapped | None = None) -> Bundle:
        """Hold a version's parameters: mapped where our publisher recorded them, else copied as they are asked for.

        Other writers overwrite files that are in use. `mapped=False` maps nothing, whoever wrote it. For `find` see
        `Bundle.open`. Raises CorruptCheckpointError where the files are not a whole checkpoint, or not the recorded
        one, UnknownVersionError where the version was pruned after the caller learned of it.
        """
        try:
            bundle = Bundle.open(self.prefix(version), mapped=mapped and bool(version.checksum), find=find)
        except CorruptCheckpointError as error:
            state = layout.read_state(self.path)
            if state is None or version.prefix not in state.names or not index_file(self.prefix(version)).exists():
                known = [other.number for other in self.versions()]
                raise UnknownVersionError(str(self.path), version.number, known) from error
            raise
        if version.checksum and version.checksum != index.digest(bundle.entries):
            record = layout.record_file(self.path, version.prefix)
            expected = f"the record of the parameters in {version.prefix}"
            raise CorruptCheckpointError(record, expected=expected, found="that of others")
        return bundle

    def prefix(self, version: Version) -> Path:
        """The path with which a version's files begin. Raises StoreError where it would lie outside the store."""
        if not layout.is_name(version.prefix):
            raise StoreError(self.path, f"expected a prefix in this directory, found {files.shown(version.prefix)}")
        return self.path / version.prefix

    def graph_file(self, digest: str) -> Path:
        """The path of the graph of that digest, whether it is there or not. Raises StoreError for what is no digest."""
        if not layout.is_digest(digest):
            raise StoreError(self.path, f"expected the hexadecimal digest of a graph, found {files.shown(digest)}")
        return layout.graph_file(self.path, digest)

    def _in_place_of(self, name: str) -> str:
        """What is there in place of the files of a version."""
        itself = re.compile(re.escape(name).replace(r"\?", "[0-9]"))  # where it is in several files
        if not any(itself.fullmatch(name) for name in files.names(self.path)):
            return "no such files"
        return (
            f"{name} itself, in TensorFlow's V1 format, which cannot be read: leave out write_version where the Saver"
            " is made, for V2 is the default"
        )

    def _listed(self, state: layout.State | None, known: Mapping[str, Version] | None = None) -> list[Version]:
        versions = {}
        for name in state.names if state else ():
            try:
                version = (known or {}).get(name) or self._version(name)
            except (CorruptCheckpointError, StoreError):
                continue
            if version is not None:
                versions[version.number] = version
        return [versions[number] for number in sorted(versions)]

    def _version(self, name: str) -> Version | None:
        """The version of that name; None where its files are not there."""
        # The record is read first: pruning takes the index away first, so that a record missing beside an index that
        # is still there afterwards can only mean that there never was one.
        record = layout.read_record(self.path, name)
        listing = index_file(self.path / name)
        try:
            with files.regular(listing) as descriptor:
                written = 0.0 if record else os.fstat(descriptor).st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            raise files.unread(listing, "an index file", error) from error
        return record or layout.unrecorded(name, written)
