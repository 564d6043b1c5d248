"""MappedVersions: whose files are in the page table, which of them leave it, and which are prefetched for the next."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paramsync.checkpoint.data_file import FileRanges, FindMapped
from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.seal import FileId, FileStamp
from paramsync.errors import CorruptCheckpointError, ParamsyncError
from paramsync.host.gil_calls import Folder
from paramsync.inference.resident import Resident
from paramsync.store.prefetch import FilePrefetch
from paramsync.version import Version

_log = logging.getLogger("paramsync.sources")


@dataclass(eq=False)
class MappedVersion:
    """One version whose files are mapped."""

    version: Version
    resident: weakref.ref[Resident]
    bundle: Bundle
    keys: tuple[str, ...]
    """The tensors that requests are not to wait for."""
    brought_in: bool
    """Whether these are in the page table."""
    untouched: bool
    """Whether the files are in this machine's memory, as their publisher left them."""

    @cached_property
    def ranges(self) -> list[FileRanges]:
        return self.bundle.file_ranges(self.keys)

    def evict(self, but: Collection[FileId]) -> None:
        self.bundle.let_pages_go(but)
        self.brought_in = False


class MappedVersions:
    """Those of one store. The bytes are in the store's files, which nobody changes while they are held. One thread."""

    def __init__(self, path: Path, folder: Folder) -> None:
        self._path = path
        self._folder = folder
        self._versions: list[MappedVersion] = []
        self._next = FilePrefetch(path)

    def add(self, mapped: MappedVersion) -> None:
        self._versions.append(mapped)

    def finder(self) -> FindMapped:
        """Finds files that are mapped already, for a version here or by prefetch."""
        mapped = {trace: file for one in self._versions for trace, file in one.bundle.mapped_files.items()}
        return lambda found: mapped.get(FileStamp.of(found)) or self._next.take(found)

    def opened(self, version: Version) -> None:
        """Judge what was prefetched, now that a version has taken of it what was right."""
        if all(version.number > one.version.number for one in self._versions):
            self._next.settle()
        else:  # nobody guessed where an older version is
            self._next.forget()

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

    def evict(self, idle: Sequence[Resident]) -> None:
        """Take the files of these versions out of the page table, but for those that others have too."""
        kept = _files([one for one in self._versions if one.resident() not in idle])
        for one in self._versions:
            if one.resident() in idle:
                one.evict(kept)

    def tend(self, used: Sequence[Resident]) -> None:
        """Bring in the files of what serves, where they are not or no longer; evict those of what serves no more.

        Evicted now, they leave less to do before the next restore.
        """
        self._versions = [one for one in self._versions if one.resident() is not None]
        if not any(one.resident() in used for one in self._versions):
            self._next.forget()
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

    def prefetch(self, serving: Resident) -> bool:
        """Bring in a portion of the files that the next version will likely be written into; False when all are in.

        It is expected to need as much of its files as the version that serves needs of its own.
        """
        if self._next.is_empty:
            like = [one for one in self._versions if one.resident() is serving and one.untouched and one.brought_in]
            others = _files([one for one in self._versions if one not in like])
            changed = [file for one in like for file in one.ranges if file.file_id not in others]
            # The next look at the store tells why it cannot be read.
            with suppress(ParamsyncError, OSError), self._folder.promptly():
                self._next.expect(changed, others | _files(like))
        return self._next.step()

    def close(self) -> None:
        """Keep nothing prefetched."""
        self._next.forget()


def _files(versions: Sequence[MappedVersion]) -> set[FileId]:
    return {file for one in versions for file in one.bundle.file_ids}
