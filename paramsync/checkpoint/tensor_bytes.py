"""Works through the bytes of tensors on several threads: examines them, copies them into a file, compares them."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import ml_dtypes
import numpy as np
from crc32c import crc32c
from xxhash import xxh3_128

from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.checkpoint.file_pool import PooledFile
from paramsync.dtypes import Array
from paramsync.host import memory
from paramsync.host.parallel import THREADS, each

PORTION = 4 << 20  # bytes that one thread copies at once: most are still in its cache then, and it seldom waits

_SMALL_WRITE = 32 << 20  # bytes: below this, four portions, as a thread's second turn costs more than it saves
_PORTIONS = 4
_EASY = 1 << 18  # bytes; portions are a multiple of it, so that checksums are soon combined

_EXAMINED = 8 << 20  # bytes that one thread examines at once: few enough for all threads to end together
_CHUNK = 2 << 20  # bytes that are still in a cache after the checksum, when their values are looked at
_FEW = 2 << 20  # bytes that one thread has seen by the time that others would have started
_SMALL = 1 << 20  # bytes of a region, on average, below which threads wait for the GIL more than they read
_POLYNOMIAL = 0x82F63B78  # of crc32c, its bits reversed

_WORTH_A_THREAD = 4 << 20  # bytes; a thread has to start, and takes turns with the others
_PROBE = 1 << 12  # bytes that tell most tensors that changed from those that did not
_NOTHING = np.empty(0, np.uint8)
_WORTH_KNOWING = 1 << 20  # bytes of a piece whose finding is kept for the next write
_MISSES = 2  # comparisons more that ended late, and in vain, than did not: the rest is copied without a look

_CACHED = 1 << 18  # bytes that the smallest cache of a processor's own has room for
_SECONDS = 0.002  # for the chunks of one digest; as much as is copied at once takes a tenth of it
_LATE = 3  # digests that took longer: some thread keeps the GIL, and is to be asked for it less

DType = np.dtype[np.generic]

Test = Callable[[memoryview], bool]
"""Tells whether all values in some memory, which is not empty, are sound."""


class Piece(NamedTuple):
    """Bytes from `start` to `stop` of the tensor number `tensor`."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The offsets of the tensors of a shard, its end, and portions of it that are about equally long."""

    offsets: tuple[int, ...]
    end: int
    portions: tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class Region:
    """The memory of a tensor, and the dtype of its values, None where they do not matter.

    `check` is called with offset and size of the bytes that are read next; an error that it raises ends the work.
    """

    memory: memoryview
    dtype: DType | None = None
    check: Callable[[int, int], None] | None = None


class Finding(NamedTuple):
    """The checksum, not masked, and whether the values are sound: no NaN, no infinity, no bool but 0 and 1."""

    checksum: int
    sound: bool


@dataclass(slots=True, eq=False)
class _KnownPiece:
    """A large piece of a file: its finding, and, once it was asked for, the digest of its bytes."""

    finding: Finding
    digest: bytes = b""


def portions(sizes: Sequence[int], longest: int | None = None) -> Iterable[tuple[Piece, ...]]:
    """All bytes of tensors of these sizes, in portions for one thread each: many small tensors, or a part of one.

    No value of a tensor is cut: pieces begin on multiples of the alignment. An empty tensor has a piece, too.
    """
    if longest is None:
        few = -(-sum(sizes) // (_PORTIONS * _EASY)) * _EASY
        longest = max(PORTION, few) if sum(sizes) <= _SMALL_WRITE else PORTION
    portion: list[Piece] = []
    room = longest
    for tensor, size in enumerate(sizes):
        start = 0
        while size - start > room:
            portion.append(Piece(tensor, start, start + room))
            yield tuple(portion)
            portion, start, room = [], start + room, longest
        portion.append(Piece(tensor, start, size))
        room -= -((start - size) // ALIGNMENT) * ALIGNMENT
        if not room:
            yield tuple(portion)
            portion, room = [], longest
    if portion:
        yield tuple(portion)


def examine(regions: Sequence[Region], *, threads: int = THREADS) -> list[Finding]:
    """A finding for each region, from one pass over the memory of all."""
    tests = [None if region.dtype is None else soundness(region.dtype) for region in regions]
    found: list[list[tuple[int, int, Finding]]] = [[] for _ in regions]

    def work(portion: tuple[Piece, ...]) -> None:
        for number, start, stop in portion:
            region = regions[number]
            if region.check is not None:
                region.check(start, stop - start)
            found[number].append((start, stop, _look(region.memory[start:stop], tests[number])))

    sizes = [len(region.memory) for region in regions]
    useful = 1 if sum(sizes) < _FEW else 2 if sum(sizes) < _SMALL * len(sizes) else THREADS
    each(work, portions(sizes, _EXAMINED), threads=min(threads, useful))
    return [joined(parts) for parts in found]


def joined(parts: Sequence[tuple[int, int, Finding]]) -> Finding:
    """The finding of a tensor from those of its pieces, each with its start and stop."""
    if len(parts) == 1:
        return parts[0][2]
    checksum, sound = 0, True
    for start, stop, part in sorted(parts):
        checksum = combine(checksum, part.checksum, stop - start) if start else part.checksum
        sound = sound and part.sound
    return Finding(checksum, sound)


def combine(first: int, second: int, length: int) -> int:
    """The checksum of two adjacent pieces, from the checksum of each and the length of the second in bytes."""
    return _times(first, _zeros(length)) ^ second


@lru_cache(maxsize=1 << 14)  # the next version has pieces of the same lengths
def _zeros(length: int) -> int:
    """What appending so many zero bytes multiplies a checksum by: x ** (8 * length)."""
    if length <= 1:
        return 1 << 31 - 8 * length
    rest = length & (length - 1)
    return _times(_zeros(rest or length // 2), _zeros(length - rest if rest else length // 2))


def _times(one: int, other: int) -> int:
    """The product of two polynomials modulo that of crc32c. The highest bit is the coefficient of x ** 0."""
    product = 0
    while one:
        if one & 1 << 31:
            product ^= other
        one = one << 1 & 0xFFFFFFFF
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return product


def _look(content: memoryview, test: Test | None) -> Finding:
    if test is None:
        return Finding(crc32c(content), True)  # in one go: threads that serve want the GIL, too
    checksum, sound = 0, True
    for start in range(0, len(content), _CHUNK):
        chunk = content[start : start + _CHUNK]
        checksum = crc32c(chunk, checksum)
        sound = sound and test(chunk)
    return Finding(checksum, sound)


@lru_cache(maxsize=64)
def soundness(dtype: DType) -> Test | None:
    """The test of values of that dtype; None where all of them are sound."""
    if dtype == np.bool_:
        return lambda content: bool(np.frombuffer(content, np.uint8).max() <= 1)
    number = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    try:
        ml_dtypes.finfo(number)
    except ValueError:
        return None  # integers, quantized ones too
    infinity = np.array(np.inf).astype(number)
    if not np.isinf(infinity):  # a dtype of one byte that has NaN only
        return lambda content: _is_finite(np.frombuffer(content, number))
    # As integers, infinities and NaNs are the largest of their sign. Looking for the largest integers is several times
    # as fast as isfinite, and gives no warning about NaN.
    unsigned, signed = np.dtype(f"u{number.itemsize}"), np.dtype(f"i{number.itemsize}")
    positive, negative = infinity.view(unsigned), (-infinity).view(unsigned)

    def finite(content: memoryview) -> bool:
        values = np.frombuffer(content, unsigned)
        return bool(values.max() < negative and values.view(signed).max() < positive)

    if number.kind != "f" or number.itemsize < 4:
        return finite
    # Adding up is faster still, and a sum is finite only where all values are. The sum of large finite values may be
    # infinite: then they are looked at one by one.
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

    `dtypes` are those of tensors whose values are to be looked at, None for others, which count as sound. A tensor is
    taken out of `tensors` once its bytes are copied, and `copied` is called with its number, on any thread: its owner
    can let go of the buffer. The last come first, as most networks are trained from their last layer on: an update of a
    pinned buffer costs a copy into new pages.
    """
    pieces = _PieceCache(file)
    tests = [None if dtype is None else soundness(dtype) for dtype in dtypes]
    parts: list[list[tuple[int, int, Finding]]] = [[] for _ in tensors]
    counts = Counter(piece.tensor for portion in layout.portions for piece in portion)
    done = [itertools.count(1) for _ in tensors]  # asked for the next number, each gives it to one thread only

    def copy(portion: tuple[Piece, ...]) -> None:
        first, last = portion[0], portion[-1]
        file.allocate(layout.offsets[first.tensor] + first.start, layout.offsets[last.tensor] + last.stop)
        for piece in portion:
            start = layout.offsets[piece.tensor] + piece.start
            source, test = tensors[piece.tensor][piece.start : piece.stop], tests[piece.tensor]
            known = pieces.find(start, source, test)
            if known is None:
                file.put(start, source)
                target = file.content[start : start + len(source)].data  # still in the cache
                known = _KnownPiece(Finding(crc32c(target), not target or test is None or test(target)))
            if len(source) >= _WORTH_KNOWING:
                file.known[start, len(source), test] = known
            del source
            parts[piece.tensor].append((piece.start, piece.stop, known.finding))
            if next(done[piece.tensor]) == counts[piece.tensor]:
                tensors[piece.tensor] = _NOTHING
                copied(piece.tensor)

    each(copy, reversed(layout.portions), threads=_threads(layout.end))
    return [joined(findings) for findings in parts]


def same(pairs: Sequence[tuple[Array, Array]]) -> list[bool]:
    """Whether the two buffers of each pair, which are equally long, have the same bytes."""
    found = [memory.equal(one, other, 0, min(_PROBE, len(one))) for one, other in pairs]
    left = [at for at, (one, _) in enumerate(pairs) if found[at] and len(one) > _PROBE]

    def compare(portion: tuple[Piece, ...]) -> None:
        for piece in portion:
            at = left[piece.tensor]
            if found[at] and not memory.equal(*pairs[at], piece.start, piece.stop):
                found[at] = False

    sizes = [len(pairs[at][0]) for at in left]
    each(compare, portions(sizes), threads=_threads(sum(sizes)))
    return found


class _PieceCache:
    """Finds pieces of a file that already hold the bytes which are to be written there.

    Few rows of a large table change from version to version, mostly side by side. Digests, of which the file's own is
    known from the second time on, show what is the same with half as many bytes read as a comparison.
    """

    def __init__(self, file: PooledFile) -> None:
        self._content = file.content
        self._before = file.take_known()
        self._digests = Digests()
        self._misses = 0

    def find(self, start: int, source: Array, test: Test | None) -> _KnownPiece | None:
        """The piece of these bytes, if they are in the file, at their place."""
        size = len(source)
        known = self._before.get((start, size, test))
        target = self._content[start : start + size]
        if known is None or self._misses > _MISSES or not memory.equal(target, source, 0, _PROBE):
            return None
        known.digest = known.digest or self._digests.of(target)
        same = known.digest == self._digests.of(source)
        self._misses += -1 if same else 1
        return known if same else None


class Digests:
    """Computes digests of large buffers, and leaves the cache that processors share to others.

    Read as they lie, hundreds of megabytes evict what others had in that cache: answers of a server took half as long
    again. The C library copies a chunk that fits into a processor's own cache past the shared one (`rep movsb`, on
    x86-64), and the digest reads it from there. Threads take turns: they would wait for the GIL at every chunk.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._chunk = np.empty(_CACHED, np.uint8)
        self._late = 0

    def of(self, content: Array) -> bytes:
        with self._turn:
            digest = xxh3_128()
            end = time.perf_counter() + _SECONDS
            start = 0
            while start < len(content) and self._late < _LATE and time.perf_counter() < end:
                part = content[start : start + _CACHED]
                chunk = self._chunk[: len(part)]
                np.copyto(chunk, part)
                digest.update(chunk.data)
                start += len(part)
            self._late += start < len(content)
            digest.update(content[start:].data)
            return digest.digest()


def _threads(size: int) -> int:
    return min(THREADS, 1 + size // _WORTH_A_THREAD)
