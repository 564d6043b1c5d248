"""Prefetches the data files that the next version will be written into, so that its restore is short.

Bringing a file into the page table is most of what a restore takes, whatever is in the file, and overwriting the file
does not evict it. Which file it will be is a guess: a publisher takes the oldest of its spares that is large enough,
most of which are as large as what serves, and a file that is listed no more is about to be a spare. Nobody reads the
bytes of a prefetched file: once a version has the file, it is held as any other.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import final

from paramsync.checkpoint.data_file import PORTION, DataFile, FileRanges, MappedFile
from paramsync.checkpoint.file_pool import SPARE, age
from paramsync.checkpoint.seal import FileId, FileStamp
from paramsync.errors import CorruptCheckpointError
from paramsync.host import files, kernel
from paramsync.host.kernel import Facts
from paramsync.store import layout

_WORTH = 4 << 20  # bytes of a file, which are brought in in a third of a millisecond
_COUNTED = 6  # wrong guesses one after the other: after them 0, 1, 3, 7 and so on versions are not guessed


@final
class PrefetchedFile:
    """A data file that is mapped for its pages alone: somebody may be overwriting it, and nobody reads its bytes."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, CorruptCheckpointError for what is no regular file."""
        with files.regular(path) as descriptor:
            self._mapped = MappedFile(path, descriptor)
            self._descriptor = os.dup(descriptor)  # of the same open file as the mapping's, which is the one to lock
        self.size = self._mapped.size
        self.file_id: FileId = self._mapped.stamp.file_id

    def bring_in(self, offset: int, size: int) -> bool:
        """Bring these bytes into the page table. False where this kernel cannot do so.

        Raises CorruptCheckpointError where the file has become too short for them.
        """
        return self._mapped.bring_in(offset, size)

    def has_a_name(self) -> bool:
        with suppress(OSError):
            return os.fstat(self._descriptor).st_nlink > 0
        return False

    def hold(self, path: Path) -> DataFile | None:
        """The file, which has this name now, locked; None where somebody is overwriting it. Raises OSError.

        Its bytes may be new, and are not read before the lock is there. This is closed in any case.
        """
        with closing(self):
            if not kernel.of(path).share(self._descriptor):
                return None
            self._mapped.path = path
            self._mapped.stamp = FileStamp.of(kernel.of(path).of_descriptor(self._descriptor))
            return self._mapped

    def close(self) -> None:
        """Unmap the file, unless it is held."""
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)
            del self._descriptor, self._mapped

    __del__ = close


class FilePrefetch:
    """The files that the next version of a store may be written into. One thread uses it, which opens versions."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mapped: dict[FileId, PrefetchedFile] = {}
        self._left: deque[tuple[PrefetchedFile, int, int]] = deque()  # from, to
        self._wrong = 0  # guesses, since the last one that was right
        self._pause = 0  # versions that are not guessed

    @property
    def is_empty(self) -> bool:
        """Whether nothing is mapped."""
        return not self._mapped

    def expect(self, expected: Sequence[FileRanges], held: Collection[FileId]) -> None:
        """Map the likely files of the next version: like the expected ones, and other files than those `held`.

        Raises OSError, StoreError, CorruptCheckpointError where the store cannot be read.
        """
        self.forget()
        likely = [like for like in expected if sum(stop - start for start, stop in like.ranges) >= _WORTH]
        for name in [] if self._pause or not likely else self._by_age():
            file = self._opened(name)
            if file is None or file.file_id in held or file.file_id in self._mapped:
                continue
            same = [like for like in likely if (like.file_id[0], like.size) == (file.file_id[0], file.size)]
            if same:
                likely.remove(same[0])
                self._mapped[file.file_id] = file
                self._left += [(file, start, stop) for start, stop in same[0].ranges]
            if not likely:
                return

    def _by_age(self) -> list[str]:
        """The names, present or former, of data files that a publisher may overwrite now or soon, the oldest first."""
        names = files.names(self._directory)
        state = layout.read_state(self._directory)
        found = set()
        for name in names:
            data = name.removeprefix(SPARE)
            version, _, shard = data.partition(".data-")
            listed = name == data and state is not None and version in state.names
            if shard and not listed and layout.is_ours(version):
                found.add(data)
        return sorted(found, key=age)

    def _opened(self, name: str) -> PrefetchedFile | None:
        for known in (name, SPARE + name):  # it may become a spare meanwhile
            with suppress(OSError, CorruptCheckpointError):
                return PrefetchedFile(self._directory / known)
        return None

    def step(self) -> bool:
        """Bring one portion in. Returns whether anything is left to do."""
        self._drop_nameless()
        if self._left:
            file, start, stop = self._left.popleft()
            try:
                if not file.bring_in(start, min(PORTION, stop - start)):
                    self.forget()
                    self._pause = sys.maxsize  # this kernel cannot do it without reading the bytes
                elif start + PORTION < stop:
                    self._left.appendleft((file, start + PORTION, stop))
            except CorruptCheckpointError:  # it was cut
                self._drop(file)
            self._drop_nameless()  # it may just have been removed, and emptied
        return bool(self._left)

    def _drop_nameless(self) -> None:
        """Let go of removed files, whose memory would be kept for nobody."""
        for file in list(self._mapped.values()):
            if not file.has_a_name():
                self._drop(file)

    def take(self, found: Facts) -> PrefetchedFile | None:
        """The file with these facts, if it was guessed, for the caller to hold or to close."""
        file = self._mapped.get((found.st_dev, found.st_ino))
        if file is None or file.size != found.st_size:
            return None
        self._forget(file)
        self._wrong = 0
        return file

    def settle(self) -> None:
        """Note that the next version is there: a file that is still mapped here was a wrong guess."""
        if self._mapped:
            self.forget()
            self._pause = 2 ** min(self._wrong, _COUNTED) - 1
            self._wrong += 1
        elif self._pause:
            self._pause -= 1

    def forget(self) -> None:
        """Let go of what is mapped."""
        for file in list(self._mapped.values()):
            self._drop(file)

    def _drop(self, file: PrefetchedFile) -> None:
        self._forget(file)
        file.close()

    def _forget(self, file: PrefetchedFile) -> None:
        del self._mapped[file.file_id]
        self._left = deque(part for part in self._left if part[0] is not file)
