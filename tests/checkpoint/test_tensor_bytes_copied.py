"""Of a file that is overwritten, what it should be already is not copied, and what is known of that is right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from crc32c import crc32c

from paramsync.checkpoint import tensor_bytes
from paramsync.checkpoint.data_file import FilePool, PooledFile
from paramsync.checkpoint.tensor_bytes import DType, Finding
from paramsync.checkpoint.writer import arrange
from tests.support.arrays import any_bits

_PIECES = 12  # of the table
_FLOAT: DType = np.dtype(np.float32)
_SIZE = _PIECES * tensor_bytes.PORTION


Bytes = npt.NDArray[np.uint8]


class Rewritten:
    """One file that is written again and again, as that of one version after another is."""

    def __init__(self, folder: Path) -> None:
        self.spares = FilePool(folder)
        self.file: PooledFile | None = None
        self._folder = folder
        self._number = 0

    def write(self, table: Bytes, dtype: DType | None = None) -> Finding:
        path = self._next()
        with self.spares.writing(path, len(table)) as file:
            assert self.file is None or file is self.file
            self.file = file
            [found] = tensor_bytes.write(file, arrange((len(table),)), [table], [dtype], lambda at: None)
        self.spares.retire(path)
        assert file.content.tobytes() == table.tobytes()
        assert found.checksum == crc32c(table.data)
        for (start, size, _), known in file.known.items():
            assert known.checksum == crc32c(table[start : start + size].data)
        return found

    def write_in_vain(self, table: Bytes) -> None:
        """As a publication that is interrupted when most is written."""
        path = self._next()

        def copied(at: int) -> None:
            raise InterruptedError

        with pytest.raises(InterruptedError), self.spares.writing(path, len(table)) as file:
            tensor_bytes.write(file, arrange((len(table),)), [table], [None], copied)

    def known(self) -> list[Finding]:
        """Of each piece, in their order."""
        assert self.file is not None
        return [known for _, known in sorted(self.file.known.items(), key=lambda item: item[0][0])]

    def _next(self) -> Path:
        self._number += 1
        return self._folder / f"data-{self._number}"


@pytest.fixture
def rewritten(memory: Path) -> Iterator[Rewritten]:
    found = Rewritten(memory)
    yield found
    found.spares.close()


def a_table() -> Bytes:
    return np.frombuffer(any_bits("uint8", (_SIZE,)).tobytes(), np.uint8).copy()


def kept(before: list[Finding], after: list[Finding]) -> list[int]:
    """The pieces of which nothing new was found: each finding is an object of its own."""
    return [at for at, (one, other) in enumerate(zip(before, after, strict=True)) if one is other]


@pytest.mark.parametrize("changed", [(0,), (3, 4), (_PIECES - 1,), ()])
def test_only_what_changed_is_copied(rewritten: Rewritten, changed: tuple[int, ...]) -> None:
    table = a_table()
    rewritten.write(table)
    before = rewritten.known()
    assert len(before) == _PIECES
    for at in changed:
        table[at * tensor_bytes.PORTION] ^= 1
    rewritten.write(table)
    assert kept(before, rewritten.known()) == [at for at in range(_PIECES) if at not in changed]


def test_where_much_changed_here_and_there_the_rest_is_not_compared(rewritten: Rewritten) -> None:
    table = a_table()
    rewritten.write(table)
    before = rewritten.known()
    for at in range(4, _PIECES):  # the last ones come first
        table[(at + 1) * tensor_bytes.PORTION - 1] ^= 1
    rewritten.write(table)
    assert not kept(before, rewritten.known())


@pytest.mark.parametrize("harm", ["written to", "another time"])
def test_of_a_file_that_a_stranger_touched_nothing_is_known(rewritten: Rewritten, harm: str) -> None:
    table = a_table()
    rewritten.write(table)
    before = rewritten.known()
    assert rewritten.file is not None
    if harm == "written to":
        table[7] ^= 1
        os.pwrite(rewritten.file.descriptor, table[:8].tobytes(), 0)  # just what it is to become
    else:
        os.utime(rewritten.file.descriptor, ns=(5, 5))
    rewritten.write(table)
    assert not kept(before, rewritten.known())


def test_what_a_failed_publication_left_is_known_for_what_it_is(rewritten: Rewritten) -> None:
    table = a_table()
    rewritten.write(table)
    other = table.copy()
    other[:: tensor_bytes.PORTION] ^= 1
    rewritten.write_in_vain(other)
    rewritten.write(table)
    rewritten.write_in_vain(other)
    rewritten.write(other)


def test_values_that_nobody_looked_at_are_looked_at(rewritten: Rewritten) -> None:
    table = np.zeros(_SIZE // 4, np.float32)
    table[-1] = np.nan
    content = table.view(np.uint8)
    assert rewritten.write(content).sound  # nobody looked
    assert not rewritten.write(content, _FLOAT).sound
    assert not rewritten.write(content, _FLOAT).sound
    assert rewritten.write(content).sound


def test_whatever_changes_the_file_is_what_it_should_be(rewritten: Rewritten) -> None:
    random = np.random.default_rng(5)
    tables = [a_table() for _ in range(2)]
    for _ in range(40):
        table = tables[random.integers(2)]
        for at in random.integers(0, _SIZE, random.integers(0, 9)):
            table[at : at + random.integers(1, 1 << 16)] ^= random.integers(1, 256, dtype=np.uint8)
        if random.random() < 0.2:
            rewritten.write_in_vain(table)
        else:
            rewritten.write(table)
