"""The data files that the next version will be written into: in the page table before that, for a short restore.

To bring a file into the page table is most of what a restore takes, whatever is in the file, and it does not leave it
because somebody overwrites it. Which file it will be is a guess: a publisher takes the oldest of its spares that is
large enough, most of which are as large as what serves, and what is listed no more is about to be a spare. Nobody looks
at the bytes of a file that is mapped here: once a version has it, it is held as any other.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import final

from paramsync.checkpoint.data_file import PORTION, Held, Mapped, Outline
from paramsync.checkpoint.file_pool import SPARE, age
from paramsync.checkpoint.seal import FileId, Trace
from paramsync.errors import CorruptCheckpointError
from paramsync.host import files, kernel
from paramsync.host.kernel import Facts
from paramsync.store import layout

_WORTH = 4 << 20  # bytes of a file, which are brought in in a third of a millisecond
_COUNTED = 6  # wrong guesses one after the other: after them 0, 1, 3, 7 and so on versions are not guessed


@final
class Unheld:
    """A data file that is mapped, and that somebody may be overwriting: for its pages. Nobody looks at its bytes."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, CorruptCheckpointError for what is no regular file."""
        with files.regular(path) as descriptor:
            self._mapped = Mapped(path, descriptor)
            self._descriptor = os.dup(descriptor)  # of the same open file as the mapping's, which is the one to lock
        self.size = self._mapped.size
        self.file_id: FileId = self._mapped.trace.file_id

    def bring_in(self, offset: int, size: int) -> bool:
        """Have the kernel bring these bytes into the page table. False where it does not know how to.

        Raises CorruptCheckpointError where the file has become too short for them.
        """
        return self._mapped.bring_in(offset, size)

    def has_a_name(self) -> bool:
        with suppress(OSError):
            return os.fstat(self._descriptor).st_nlink > 0
        return False

    def hold(self, path: Path) -> Held | None:
        """The file, which has this name now, locked; None where somebody is overwriting it. Raises OSError.

        What is in it may be new, and is not looked at before the lock is there. This is closed in any case.
        """
        with closing(self):
            if not kernel.of(path).share(self._descriptor):
                return None
            self._mapped.path = path
            self._mapped.trace = Trace.of(kernel.of(path).of_descriptor(self._descriptor))
            return self._mapped

    def close(self) -> None:
        """Unmap it, unless it is held."""
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)
            del self._descriptor, self._mapped

    __del__ = close


class Ahead:
    """Files that may be of the next version in a store. One thread uses it, the one that opens versions."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mapped: dict[FileId, Unheld] = {}
        self._left: deque[tuple[Unheld, int, int]] = deque()  # from, to
        self._wrong = 0  # guesses, since the last one that was right
        self._pause = 0  # versions that are not guessed

    @property
    def is_empty(self) -> bool:
        """Whether nothing is mapped."""
        return not self._mapped

    def expect(self, outlines: Sequence[Outline], held: Collection[FileId]) -> None:
        """The next version will have data files like these, in others than those that are `held`: map what is there.

        Raises OSError, StoreError, CorruptCheckpointError where the store cannot be read.
        """
        self.forget()
        likely = [one for one in outlines if sum(stop - start for start, stop in one.stretches) >= _WORTH]
        for data in [] if self._pause or not likely else self._by_age():
            one = self._opened(data)
            if one is None or one.file_id in held or one.file_id in self._mapped:
                continue
            like = next((it for it in likely if (it.file_id[0], it.size) == (one.file_id[0], one.size)), None)
            if like is not None:
                likely.remove(like)
                self._mapped[one.file_id] = one
                self._left += [(one, start, stop) for start, stop in like.stretches]
            if not likely:
                return

    def _by_age(self) -> list[str]:
        """What the data files are called, or were, that a publisher may overwrite now or soon: the oldest first."""
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

    def _opened(self, data: str) -> Unheld | None:
        for name in (data, SPARE + data):  # it may get this name meanwhile
            with suppress(OSError, CorruptCheckpointError):
                return Unheld(self._directory / name)
        return None

    def step(self) -> bool:
        """Bring a portion in. Returns False where nothing is left to do."""
        self._drop_nameless()
        if self._left:
            one, start, stop = self._left.popleft()
            try:
                if not one.bring_in(start, min(PORTION, stop - start)):
                    self.forget()
                    self._pause = sys.maxsize  # this kernel cannot do it without looking at the bytes
                elif start + PORTION < stop:
                    self._left.appendleft((one, start + PORTION, stop))
            except CorruptCheckpointError:  # it was cut
                self._drop(one)
            self._drop_nameless()  # it may just have been removed, and emptied
        return bool(self._left)

    def _drop_nameless(self) -> None:
        """The memory of those that were removed would be kept for nobody."""
        for one in list(self._mapped.values()):
            if not one.has_a_name():
                self._drop(one)

    def take(self, found: Facts) -> Unheld | None:
        """The file with these facts, if it was guessed, for the caller to hold or to close."""
        one = self._mapped.get((found.st_dev, found.st_ino))
        if one is None or one.size != found.st_size:
            return None
        self._forget(one)
        self._wrong = 0
        return one

    def settle(self) -> None:
        """The next version is there: what is still mapped here was not for it."""
        if self._mapped:
            self.forget()
            self._pause = 2 ** min(self._wrong, _COUNTED) - 1
            self._wrong += 1
        elif self._pause:
            self._pause -= 1

    def forget(self) -> None:
        """Let go of what is mapped."""
        for one in list(self._mapped.values()):
            self._drop(one)

    def _drop(self, one: Unheld) -> None:
        self._forget(one)
        one.close()

    def _forget(self, one: Unheld) -> None:
        del self._mapped[one.file_id]
        self._left = deque(part for part in self._left if part[0] is not one)
