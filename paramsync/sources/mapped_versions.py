"""MappedVersions: whose files are in the page table, and which of them leave it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from paramsync.checkpoint.data_file import FileId, FileStamp, FindMapped
from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError
from paramsync.inference.view import InMemory
from paramsync.version import Version

_log = logging.getLogger("paramsync.sources")


@dataclass(eq=False)
class MappedVersion:
    """One version whose files are mapped."""

    version: Version
    resident: weakref.ref[InMemory]
    bundle: Bundle
    keys: tuple[str, ...]
    """The tensors that requests are not to wait for."""
    brought_in: bool
    """Whether these are in the page table."""
    untouched: bool
    """Whether the files are in this machine's memory, as their publisher left them."""

    def evict(self, but: Collection[FileId]) -> None:
        self.bundle.let_pages_go(but)
        self.brought_in = False


class MappedVersions:
    """Those of one store. The bytes are in the store's files, which nobody changes while they are held. One thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._versions: list[MappedVersion] = []

    def add(self, mapped: MappedVersion) -> None:
        self._versions.append(mapped)

    def finder(self) -> FindMapped:
        """Finds files that are mapped already, for a version here."""
        mapped = {trace: file for one in self._versions for trace, file in one.bundle.mapped_files.items()}
        return lambda found: mapped.get(FileStamp.of(found))

    def verified(self, version: Version, bundle: Bundle, keys: Sequence[str]) -> set[str]:
        """The tensors verified for a version here which has the same files: held, and not written to since.

        None where the kernel has dropped any of them: they would be read from the disk again, and must be verified
        again.
        """
        if not version.checksum:
            return set()
        found: set[str] = set()
        for one in self._versions:
            looked_at_values = version.finite or not one.version.finite
            common = not bundle.file_ids.isdisjoint(one.bundle.file_ids)
            if common and looked_at_values and one.brought_in and not one.untouched:
                both = set(one.keys).intersection(keys)
                found.update(key for key in both if bundle.marks(key) == one.bundle.marks(key))
        return found if bundle.is_present(found) else set()

    def evict(self, idle: Sequence[InMemory]) -> None:
        """Take the files of these versions out of the page table, but for those that others have too."""
        kept = _files([one for one in self._versions if one.resident() not in idle])
        for one in self._versions:
            if one.resident() in idle:
                one.evict(kept)

    def tend(self, used: Sequence[InMemory]) -> None:
        """Bring in the files of what serves, where they are not or no longer; evict those of what serves no more.

        Evicted now, they leave less to do before the next restore.
        """
        self._versions = [one for one in self._versions if one.resident() is not None]
        kept = _files([one for one in self._versions if one.resident() in used])
        for one in self._versions:
            if one.brought_in and one.resident() not in used:
                one.evict(kept)
        for one in self._versions:
            resident = one.resident()
            if resident is not None and resident in used and not one.brought_in:
                one.brought_in = True
                try:
                    one.bundle.prefault(one.keys)
                except CorruptCheckpointError as error:
                    number = one.version.number
                    _log.warning("%s: version %d was damaged after it was restored: %s", self._path, number, error)


def _files(versions: Sequence[MappedVersion]) -> set[FileId]:
    return {file for one in versions for file in one.bundle.file_ids}
