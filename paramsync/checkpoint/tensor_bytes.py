"""Examines, copies and compares the bytes of tensors on a few threads.

numpy and crc32c release the GIL while they work on large buffers.
"""

from __future__ import annotations

import _thread
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

import ml_dtypes
import numpy as np
from crc32c import crc32c

from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.checkpoint.file_pool import PooledFile
from paramsync.dtypes import Array
from paramsync.host import memory
from paramsync.host.processes import processors

T = TypeVar("T")

PROCESSORS = processors()
"""The processors that this process may use: a container or `taskset` may limit them."""
THREADS = min(4, max(1, PROCESSORS - 1))
"""More threads read memory no faster. One processor is left to serving or training."""
PORTION = 4 << 20  # bytes that one thread works on at once: most stay in its cache for a second pass

_POLYNOMIAL = 0x82F63B78  # the polynomial of crc32c, with its bits reversed
_PROBE = 1 << 12  # how many bytes of a piece are compared first, because most changes show there
_NOTHING = np.empty(0, np.uint8)
_WORTH_KNOWING = 1 << 20  # bytes: the finding of a smaller piece is not kept for the next write
# once this many more full comparisons failed than succeeded, the rest is copied without comparison
_MISSES = 2

DType = np.dtype[np.generic]

Test = Callable[[memoryview], bool]
"""Returns whether all values in this memory are sound. The memory must not be empty."""

Fill = Callable[[Sequence["Piece"], Sequence[Array]], object]
"""Writes the bytes of each piece to its place in memory."""


class Piece(NamedTuple):
    """The bytes from `start` to `stop` of the tensor with this number."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The offset of each tensor in a shard, the shard's size, and its portions, which are about equally long."""

    offsets: tuple[int, ...]
    end: int
    portions: tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class Region:
    """The memory of a tensor, and the dtype of its values; without a dtype the values are not checked.

    `check` is called with offset and size before bytes are read; an error that it raises ends the work.
    """

    memory: memoryview
    dtype: DType | None = None
    check: Callable[[int, int], None] | None = None


class Finding(NamedTuple):
    """The checksum of some bytes, not masked, and whether their values are sound.

    Values are sound if they contain no NaN, no infinity, and no bool other than 0 and 1.
    """

    checksum: int
    sound: bool


def each(work: Callable[[T], object], items: Iterable[T], *, threads: int = THREADS) -> None:
    """Call `work` with every item, on this thread and `threads` - 1 other threads. Returns when all calls have ended.

    The first error ends the work soon, and is raised here. The threads live as long as the call. Starting a thread
    takes about a tenth of a millisecond, so use `threads=1` for small work.
    """
    job, queue, turn = [work], iter(items), threading.Lock()
    running: list[threading.Lock] = []  # a lock for each thread, released when the thread ends
    errors: list[BaseException] = []

    def take() -> None:
        task = job[0] if job else None
        while task and not errors:
            with turn:
                item = next(queue, None)
            if item is None:
                return
            try:
                task(item)
            except BaseException as error:  # noqa: BLE001, raised again by the caller's thread
                errors.append(error)

    def run(ended: threading.Lock) -> None:
        take()
        ended.release()

    def wait() -> None:
        for ended in running:
            with ended:
                pass
        job.clear()  # a thread that is just ending must keep no work alive

    try:
        for _ in range(threads - 1):
            ended = threading.Lock()
            ended.acquire()
            try:
                # unlike `threading.Thread`, this does not wait until the thread runs
                _thread.start_new_thread(run, (ended,))
            except RuntimeError:  # the system has no thread left: the other threads do the work
                break
            running.append(ended)
        take()
        wait()
    except BaseException as error:  # noqa: BLE001, an interrupt, too: no thread may work on after this returns
        errors.insert(0, error)
        while job:
            with suppress(BaseException):  # further interrupts: all threads finish their current item
                wait()
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # otherwise the error, its traceback and this frame would keep each other alive


def portions(sizes: Sequence[int]) -> Iterable[tuple[Piece, ...]]:
    """Divide tensors of these sizes into portions for one thread each: many small tensors, or a part of a large tensor.

    Every piece begins on a multiple of PORTION in its tensor. An empty tensor has a piece, too.
    """
    portion: list[Piece] = []
    room = PORTION
    for tensor, size in enumerate(sizes):
        for start in range(0, max(size, 1), PORTION):
            piece = Piece(tensor, start, min(start + PORTION, size))
            taken = -((start - piece.stop) // ALIGNMENT) * ALIGNMENT
            if taken > room:
                yield tuple(portion)
                portion, room = [], PORTION
            portion.append(piece)
            room -= taken
    if portion:
        yield tuple(portion)


def examine(regions: Sequence[Region], *, threads: int = THREADS) -> list[Finding]:
    """Return a finding for each region, from one pass over its memory."""
    tests = [None if region.dtype is None else soundness(region.dtype) for region in regions]
    parts: list[list[tuple[Piece, Finding]]] = [[] for _ in regions]

    def work(portion: tuple[Piece, ...]) -> None:
        for piece in portion:
            region = regions[piece.tensor]
            if region.check is not None:
                region.check(piece.start, piece.stop - piece.start)
            content = region.memory[piece.start : piece.stop]
            parts[piece.tensor].append((piece, _finding(content, tests[piece.tensor])))

    sizes = [len(region.memory) for region in regions]
    each(work, portions(sizes), threads=min(threads, _threads(sum(sizes))))
    return [_joined(findings) for findings in parts]


def _joined(parts: Sequence[tuple[Piece, Finding]]) -> Finding:
    """Return the finding of a tensor from the findings of its pieces."""
    if len(parts) == 1:
        return parts[0][1]
    checksum, sound = 0, True
    for piece, part in sorted(parts):
        checksum = combine(checksum, part.checksum, piece.stop - piece.start)
        sound = sound and part.sound
    return Finding(checksum, sound)


def combine(first: int, second: int, length: int) -> int:
    """Return the checksum of two adjacent pieces from their checksums and the length of the second piece in bytes."""
    return _times(first, _zeros(length)) ^ second


@lru_cache(maxsize=1 << 14)  # the next version has pieces of the same lengths
def _zeros(length: int) -> int:
    """Return the polynomial x ** (8 * length): appending `length` zero bytes multiplies a checksum by it."""
    if length <= 1:
        return 1 << 31 - 8 * length
    rest = length & (length - 1)
    return _times(_zeros(rest or length // 2), _zeros(length - rest if rest else length // 2))


def _times(first: int, second: int) -> int:
    """Multiply two polynomials modulo the polynomial of crc32c. The highest bit is the coefficient of x ** 0."""
    product = 0
    while first:
        if first & 1 << 31:
            product ^= second
        first = first << 1 & 0xFFFFFFFF
        second = second >> 1 ^ (_POLYNOMIAL if second & 1 else 0)
    return product


def _finding(content: memoryview, test: Test | None) -> Finding:
    return Finding(crc32c(content), not content or test is None or test(content))


@lru_cache(maxsize=64)
def soundness(dtype: DType) -> Test | None:
    """Return the test for values of this dtype; None if all values of the dtype are sound."""
    if dtype == np.bool_:
        return lambda content: bool(np.frombuffer(content, np.uint8).max() <= 1)
    number = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    try:
        ml_dtypes.finfo(number)
    except ValueError:
        return None  # integers, including quantized integers
    infinity = np.array(np.inf).astype(number)
    if not np.isinf(infinity):  # a dtype of one byte, with NaN but no infinity
        return lambda content: _is_finite(np.frombuffer(content, number))
    # Read as integers, infinities and NaNs are the largest values of each sign. Finding the largest integer is several
    # times as fast as isfinite, and gives no warnings.
    unsigned, signed = np.dtype(f"u{number.itemsize}"), np.dtype(f"i{number.itemsize}")
    positive, negative = infinity.view(unsigned), (-infinity).view(unsigned)

    def finite(content: memoryview) -> bool:
        values = np.frombuffer(content, unsigned)
        return bool(values.max() < negative and values.view(signed).max() < positive)

    if number.kind != "f" or number.itemsize < 4:
        return finite
    # A sum is even faster, and a finite sum proves that all values are finite. But the sum of large finite values may
    # be infinite, so after an infinite sum the values are checked one by one.
    return lambda content: math.isfinite(np.einsum("i->", np.frombuffer(content, number))) or finite(content)


def _is_finite(values: np.ndarray[tuple[int], DType]) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(values).all())


def write(
    file: PooledFile,
    layout: Layout,
    tensors: list[Array],
    dtypes: Sequence[DType | None],
    copied: Callable[[int], object],
) -> list[Finding]:
    """Copy the bytes of tensors to their places; returns findings about the bytes in the file.

    `dtypes` has the dtype of each tensor whose values are checked, and None for tensors that count as sound. Once all
    bytes of a tensor are copied, it is removed from `tensors`. Then `copied` is called with the tensor's number, on any
    thread, so that the owner can release the buffer: updating a buffer that is still referenced costs a copy into new
    pages. The last tensors are copied first, because most networks are updated from their last layer on.
    """
    tests = [None if dtype is None else soundness(dtype) for dtype in dtypes]
    parts: list[list[tuple[Piece, Finding]]] = [[] for _ in tensors]
    counts = Counter(piece.tensor for portion in layout.portions for piece in portion)
    done = [itertools.count(1) for _ in tensors]  # `next` is atomic: exactly one thread gets the last number
    before, misses = file.take_known(), 0

    def unchanged(start: int, source: Array, test: Test | None) -> Finding | None:
        """Return the finding of a piece that the file already has, else None.

        Comparing pays for large tables, because few rows of a table change, and these rows are mostly adjacent.
        """
        nonlocal misses
        known = before.get((start, len(source), test))
        target = file.content[start : start + len(source)]
        if known is None or misses > _MISSES or not memory.equal(target, source, 0, _PROBE):
            return None
        is_same = memory.equal(target, source, _PROBE, len(source))
        misses += -1 if is_same else 1
        return known if is_same else None

    def copy(portion: tuple[Piece, ...]) -> None:
        first, last = portion[0], portion[-1]
        file.allocate(layout.offsets[first.tensor] + first.start, layout.offsets[last.tensor] + last.stop)
        for piece in portion:
            start = layout.offsets[piece.tensor] + piece.start
            source, test = tensors[piece.tensor][piece.start : piece.stop], tests[piece.tensor]
            finding = unchanged(start, source, test)
            if finding is None:
                file.put(start, source)
                finding = _finding(file.content[start : start + len(source)].data, test)  # still in the cache
            if len(source) >= _WORTH_KNOWING:
                file.known[start, len(source), test] = finding
            del source
            parts[piece.tensor].append((piece, finding))
            if next(done[piece.tensor]) == counts[piece.tensor]:
                tensors[piece.tensor] = _NOTHING
                copied(piece.tensor)

    each(copy, reversed(layout.portions), threads=_threads(layout.end))
    return [_joined(findings) for findings in parts]


def receive(file: PooledFile, layout: Layout, fill: Fill, *, threads: int) -> list[Finding]:
    """Have `fill` write the bytes of tensors to their places; returns findings about the bytes in the file.

    A finding says nothing about the values of a tensor. `threads` is how many calls of `fill` run at once.
    """
    parts: list[list[tuple[Piece, Finding]]] = [[] for _ in layout.offsets]
    file.take_known()  # forget the findings about the old bytes

    def work(portion: tuple[Piece, ...]) -> None:
        starts = [layout.offsets[piece.tensor] + piece.start for piece in portion]
        ends = [start + piece.stop - piece.start for start, piece in zip(starts, portion, strict=True)]
        file.allocate(starts[0], ends[-1])
        with file.places([*zip(starts, ends, strict=True)]) as places:
            fill(portion, places)
            for piece, place in zip(portion, places, strict=True):
                parts[piece.tensor].append((piece, _finding(place.data, None)))  # still in the cache

    each(work, layout.portions, threads=min(threads, len(layout.portions)))
    return [_joined(findings) for findings in parts]


def same(pairs: Sequence[tuple[Array, Array]]) -> list[bool]:
    """Return for each pair of buffers whether both have the same bytes. Both buffers must have the same length."""
    equal = [True] * len(pairs)

    def compare(portion: tuple[Piece, ...]) -> None:
        for piece in portion:
            if equal[piece.tensor] and not memory.equal(*pairs[piece.tensor], piece.start, piece.stop):
                equal[piece.tensor] = False

    sizes = [len(first) for first, _ in pairs]
    each(compare, portions(sizes), threads=_threads(sum(sizes)))
    return equal


def _threads(size: int) -> int:
    return min(THREADS, 1 + size // PORTION)  # a thread costs time to start, and takes turns with the others
