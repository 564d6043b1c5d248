"""Memory is examined, copied and compared in pieces on several threads, with the result of one pass over all of it."""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from crc32c import crc32c

from paramsync.checkpoint import tensor_bytes
from paramsync.checkpoint.file_pool import FilePool, PooledFile
from paramsync.checkpoint.tensor_bytes import DType, Finding, Region, examine
from paramsync.checkpoint.writer import arrange
from paramsync.dtypes import Array
from tests.support.arrays import any_bits

_LONG = 10.0


def test_without_threads_the_caller_does_all_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", no_thread)
    done: list[int] = []
    tensor_bytes.each(done.append, range(100), threads=4)
    assert done == list(range(100))


def test_an_error_is_raised_and_the_threads_are_gone() -> None:
    def divide(item: int) -> None:
        assert 1 // item != 7

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        tensor_bytes.each(divide, range(-5, 5), threads=4)
    assert threading.active_count() == before


def test_interrupts_again_and_again_leave_no_thread_at_work() -> None:
    at_work, going_on, never = threading.Semaphore(0), threading.Event(), threading.Event()
    done: list[int] = []
    interrupts: list[int] = []

    def work(item: int) -> None:
        at_work.release()
        assert going_on.wait(_LONG)
        done.append(item)

    def interrupt(number: int, frame: object) -> None:
        interrupts.append(number)
        if len(interrupts) <= 3:
            raise KeyboardInterrupt

    def interrupt_thrice() -> None:
        for _ in range(3):
            assert at_work.acquire(timeout=_LONG)
        while len(interrupts) < 3:
            # Again and again, because Python handles a signal that comes just before a wait only after that wait.
            signal.pthread_kill(main, signal.SIGINT)
            never.wait(0.01)
        going_on.set()

    main = threading.get_ident()
    before = signal.signal(signal.SIGINT, interrupt)
    other = threading.Thread(target=interrupt_thrice)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            tensor_bytes.each(work, range(1, 100), threads=3)
        found = len(done)
        other.join(_LONG)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(interrupts) >= 3
    assert found == len(done) == 2  # what the other two were at


MIB = 1 << 20

FLOATS = [
    np.dtype(one)
    for one in (
        np.float16,
        np.float32,
        np.float64,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e4m3b11fnuz,
        ml_dtypes.float8_e5m2fnuz,
    )
]


def region(array: Array, dtype: DType | None = None) -> Region:
    return Region(array.reshape(-1).view(np.uint8).data, dtype)


def sound(array: Array) -> bool:
    return examine([region(array, array.dtype)])[0].sound


@pytest.mark.parametrize("threads", [1, 4])
def test_checksums_are_those_of_whole_regions(threads: int) -> None:
    content = np.random.default_rng(0).integers(0, 256, 20 * MIB, np.uint8)
    lengths = [0, 1, 5000, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 17 * MIB + 3, 0, 64, *[100] * 50]
    pieces = [content[:length] for length in lengths]
    found = examine([region(piece) for piece in pieces], threads=threads)
    assert found == [Finding(crc32c(piece.data), True) for piece in pieces]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_each_value_is_judged_as_isfinite_would(dtype: DType) -> None:
    bits = np.arange(1 << 8 * min(dtype.itemsize, 2), dtype=f"u{min(dtype.itemsize, 2)}")
    if dtype.itemsize > 2:
        bits = bits.astype(f"u{dtype.itemsize}") << np.array(8 * dtype.itemsize - 16, f"u{dtype.itemsize}")
    values = bits.view(dtype)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(values)
    assert sound(values[finite])
    for bad in values[~finite].reshape(-1, 1)[:: max(1, (~finite).sum() // 500)]:
        assert not sound(bad)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("at", [0, 1_100_000, -1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_value_among_many_is_found(dtype: type[np.floating], at: int, bad: float) -> None:
    limits = np.finfo(dtype)
    values = np.resize(np.array([limits.max, limits.min, -0.0, limits.tiny], dtype), 2_500_000)
    assert sound(values)
    assert sound(values.view(np.result_type(dtype, np.complex64)))
    values[at] = bad
    assert not sound(values)
    assert not sound(values.view(np.result_type(dtype, np.complex64)))


def test_a_bool_is_0_or_1() -> None:
    assert sound(np.array([0, 1, 0], np.uint8).view(np.bool_))
    assert not sound(np.array([0, 1, 2], np.uint8).view(np.bool_))
    assert not sound(np.array([255], np.uint8).view(np.bool_))


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
@pytest.mark.parametrize("place", [0, tensor_bytes.PORTION - 1])
def test_only_what_changed_is_copied(rewritten: Rewritten, changed: tuple[int, ...], place: int) -> None:
    table = a_table()
    rewritten.write(table)
    before = rewritten.known()
    assert len(before) == _PIECES
    for at in changed:
        table[at * tensor_bytes.PORTION + place] ^= 1
    rewritten.write(table)
    assert kept(before, rewritten.known()) == [at for at in range(_PIECES) if at not in changed]


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
