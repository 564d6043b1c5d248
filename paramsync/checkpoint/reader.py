"""Opens a checkpoint: checks its index, locks its files, and returns its tensors as arrays in the files' memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from crc32c import crc32c

from paramsync import dtypes
from paramsync.checkpoint import digests
from paramsync.checkpoint.data_file import DataFile, FileStamp, open_data_file, seal_of
from paramsync.checkpoint.tensor_bytes import PORTION, THREADS, Finding, Region, each, examine, soundness
from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError, ParameterError, ParamsyncError, UnreadableError
from paramsync.host import files
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Entry, data_file, index_file
from paramsync.tensorbundle.sstable import mask

_OBJECTS = 1 << 30  # most bytes of a tensor of strings, which must be read at once
_LOOKS = 5  # how often to try to open a checkpoint that keeps changing
_SCRUBBED = 1 << 20  # bytes that a scrub reads at a time, so that other threads get the processor
_GAP = 1 << 12  # bytes: two ranges with a smaller gap between them are merged

_Place = tuple[int, int, int, int]  # shard, offset, size, dtype


@dataclass(frozen=True, slots=True, eq=False)
class Loan:
    """Tensors lent to another process: the locked data files, and where the tensors lie in them."""

    descriptors: tuple[int, ...]
    """The caller closes the descriptors. A file stays locked while any process has its descriptor open or mapped."""
    sizes: tuple[int, ...]
    places: Sequence[tuple[int, int, int, tuple[int, ...]] | Array]
    """For each tensor the number of its file, offset, dtype and shape.

    Strings, variants and partitioned variables are given by their values instead.
    """
    ranges: tuple[tuple[int, int, int], ...]
    """The bytes to bring into the page table at once: number of a file, start and stop."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bundle:
    """A checkpoint whose index was checked and whose data files are locked. Safe to use from any thread.

    Our publishers do not overwrite these files while the bundle, or an array in the memory of its files, is alive. They
    may unlink or rename the files.
    """

    prefix: Path
    entries: Mapping[str, Entry]
    _shards: Mapping[int, DataFile]
    _mapped: bool

    @classmethod
    def open(
        cls,
        prefix: Path,
        *,
        mapped: bool = True,
        frozen: int | None = None,
        shared: Mapping[FileStamp, DataFile] = MappingProxyType({}),
        folder: int | None = None,
    ) -> Bundle:
        """Lock a checkpoint's data files, and make sure that they belong to the index. No tensor is read.

        1. Read the index.
        2. Open each data file by its name, take a shared lock on it, and map it.
        3. Check that each name still leads to the locked file, and that the index has not changed.
        4. Otherwise close everything and begin again, a few times.

        Before a publisher overwrites a data file, it removes the file's name and takes the exclusive lock. If it
        removed the name before step 3, step 3 finds no file, or another file. If it removes the name later, the shared
        lock was there first, so the publisher leaves the file alone. A publisher may also have written new content
        under the same name, but then step 3 finds another index.

        `mapped=False` is for files of writers that ignore these locks: each tensor is copied when it is first read, so
        that nobody can change or truncate it after its check. `shared` files are already mapped by other bundles and
        are not mapped again. With `frozen`, maps immutable copies of the tensors, of at most `frozen` bytes. For
        `folder` see `files.regular`.

        Raises CorruptCheckpointError if the files are not a whole checkpoint or keep changing, UnreadableError if they
        cannot be read now.
        """
        listing = index_file(prefix)
        for _ in range(_LOOKS):
            content = index.content(listing, folder=folder)
            table = index.decode(content, path=listing)
            pieces = [piece for entry in table.entries.values() for piece in entry.pieces]
            if frozen is not None and (size := sum(piece.size for piece in pieces)) > frozen:
                raise CorruptCheckpointError(listing, expected=f"tensors of at most {frozen} bytes", found=size)
            ranges = [] if frozen is None else _ranges(pieces)
            shards: dict[int, DataFile] = {}
            try:
                for shard in {piece.shard for piece in pieces}:
                    copied = None if frozen is None else [(start, stop) for of, start, stop in ranges if of == shard]
                    path = data_file(prefix, shard, table.shards)
                    file = open_data_file(path, mapped=mapped, frozen=copied, shared=shared, folder=folder)
                    if file is None:
                        break
                    shards[shard] = file
                else:
                    _check_bounds(table.entries, shards)
                    named = all(file.has_its_name(folder=folder) for file in shards.values())
                    if named and index.content(listing, folder=folder) == content:
                        return cls(prefix, MappingProxyType(dict(table.entries)), shards, mapped)
            except CorruptCheckpointError:
                if index.content(listing, folder=folder) == content:
                    raise
        found = f"one that changed {_LOOKS} times while it was read"
        raise CorruptCheckpointError(listing, expected="a checkpoint at rest", found=found)

    def array(self, name: str) -> Array:
        """Return the tensor in the file's memory, which the array keeps alive. Strings are an object array of bytes.

        Does not check the checksum. In a mapped file that TensorFlow wrote, the address may not be aligned. The parts
        of a partitioned variable are copied into one array. Raises KeyError for a name that is not in `entries`,
        CorruptCheckpointError for malformed strings, a dtype that numpy lacks, or a file that was truncated since.
        """
        entry = self.entries[name]
        dtype = self._numpy_dtype(name, entry)
        if entry.parts:
            parts = ((part.start, self._values(name, part.entry, dtype)) for part in entry.parts)
            return index.assemble(entry.shape, dtype, parts)
        return self._values(name, entry, dtype)

    def verify(self, names: Iterable[str], *, finite: bool = False, threads: int = THREADS) -> None:
        """Verify the checksum of each tensor and, with `finite`, check its values, in one pass over memory.

        The values of bools are always checked. Afterwards all tensors are in the page table. Runs on at most `threads`
        threads, which release the GIL. Raises CorruptCheckpointError for the first tensor that differs,
        ParameterError for the first tensor with forbidden values: NaN, infinity, a bool that is neither 0 nor 1.
        """
        claims = [(name, piece) for name in names for piece in self.entries[name].pieces]
        findings = self._examine(claims, finite=finite, threads=threads)
        for name, piece in claims:
            finding = findings[_place(piece)]
            if error := self._mismatch(name, piece, finding.checksum):
                raise error
            if not finding.sound:
                raise self._unsound(name, piece)

    def faults(self, advance: Callable[[int], None], *, finite: bool = False) -> dict[str, ParamsyncError]:
        """Return, by name, the error of each tensor that `verify` would refuse. Needs little memory for large files.

        Unlike `verify`, checks the values of bools only if `finite`. Runs on several threads, each of which calls
        `advance` with the number of bytes that it read.
        """
        wrong: dict[str, ParamsyncError] = {}
        places: dict[_Place, list[tuple[str, Entry]]] = {}
        for name, entry in self.entries.items():
            for piece in entry.pieces:
                places.setdefault(_place(piece), []).append((name, piece))

        def look(claims: list[tuple[str, Entry]]) -> None:
            try:
                checksum, sound = self._read_through(*claims[0], advance, finite=finite)
            except (CorruptCheckpointError, UnreadableError) as error:
                wrong.update((name, error) for name, _ in claims)
                return
            for name, piece in claims:
                if mismatch := self._mismatch(name, piece, checksum):
                    wrong[name] = mismatch
                elif not sound:
                    wrong.setdefault(name, self._unsound(name, piece))

        each(look, places.values())
        return wrong

    def scrub(self, name: str) -> Iterator[int]:
        """Verify the checksum of a tensor a portion at a time; yields the number of bytes of each portion.

        Skips strings and variants, because their values are copies. Raises CorruptCheckpointError for a tensor that
        differs, or a truncated file; UnreadableError if the file cannot be read now.
        """
        for piece in self.entries[name].pieces:
            if piece.dtype not in (dtypes.STRING, dtypes.VARIANT):
                yield from map(len, self._chunks(name, piece, _SCRUBBED))

    def digest(self, *, advance: Callable[[int], None] = lambda count: None, threads: int = THREADS) -> str:
        """Return the digest of all tensors, see `digests.of_checkpoint`. Frozen tensors are hashed only once.

        `advance` is called, on any thread, with the number of bytes that were hashed. Raises CorruptCheckpointError for
        partitioned variables, which have no digest, and for a truncated file; UnreadableError.
        """
        if parts := [name for name, entry in self.entries.items() if entry.parts]:
            found = f"parts of {files.shown(parts[0])}"
            raise CorruptCheckpointError(index_file(self.prefix), expected="tensors in one piece", found=found)
        known: dict[str, bytes] = {}
        for name, entry in self.entries.items():
            if of_tensor := (self._shards[entry.shard].digests or {}).get((entry.offset, entry.size)):
                known[name] = of_tensor
        names = [name for name in self.entries if name not in known]
        entries = [self.entries[name] for name in names]

        def read(at: int, start: int, stop: int) -> memoryview:
            advance(stop - start)
            return self._shards[entries[at].shard].read(entries[at].offset + start, stop - start)

        made = digests.of_tensors([entry.size for entry in entries], read, threads=threads)
        for entry, digest in zip(entries, made, strict=True):
            if (of_file := self._shards[entry.shard].digests) is not None:
                of_file[entry.offset, entry.size] = digest
        return digests.of_checkpoint(self.entries, known | dict(zip(names, made, strict=True)))

    def portions(self, name: str, elements: int) -> Iterator[Array]:
        """Yield the current values of a tensor, flat, at most `elements` at a time; strings all at once.

        Checks the checksum after the last portion. The parts of a partitioned variable come one after the
        other. Raises CorruptCheckpointError, UnreadableError.
        """
        for piece in self.entries[name].pieces:
            dtype = self._numpy_dtype(name, piece)
            if piece.dtype == dtypes.STRING:
                path = self._shards[piece.shard].path
                values, checksum = index.decode_strings(
                    self._read_objects(name, piece), piece.shape, path=path, name=name
                )
                yield values.reshape(-1)
                if error := self._mismatch(name, piece, checksum):
                    raise error
            else:
                for chunk in self._chunks(name, piece, elements * dtype.itemsize):
                    yield np.frombuffer(chunk, dtype)

    def _chunks(self, name: str, piece: Entry, size: int) -> Iterator[memoryview]:
        """Yield the file's current bytes, `size` at a time; then check their checksum."""
        checksum = 0
        for start in range(0, piece.size, size):
            chunk = self._shards[piece.shard].read(piece.offset + start, min(size, piece.size - start))
            checksum = crc32c(chunk, checksum)
            yield chunk
        if error := self._mismatch(name, piece, checksum):
            raise error

    @property
    def seal(self) -> str:
        """The state of the data files when they were opened, as a text; see `seal_of`."""
        return seal_of([self._shards[number].stamp for number in sorted(self._shards)], self.prefix.parent)

    def prefault(self, names: Iterable[str]) -> None:
        """Bring the tensors into the page table, so that no request waits for their pages later.

        Runs on this thread and releases the GIL. Raises CorruptCheckpointError if a file was truncated, UnreadableError
        if it cannot be read now.
        """
        pieces = self._pieces(names)
        for piece in pieces:
            self._memory(piece)
        for shard, start, stop in _ranges(pieces):
            self._shards[shard].prefault(start, stop - start)

    @property
    def mapped_files(self) -> dict[FileStamp, DataFile]:
        """The mapped data files, by stamp."""
        return {file.stamp: file for file in self._shards.values() if file.is_mapped}

    def lend(self, names: Sequence[str], needed: Iterable[str]) -> Loan:
        """Lend these tensors to another process, which maps them. `needed` tensors go into its page table at once."""
        numbers = {shard: at for at, shard in enumerate(self._shards)}
        places: list[tuple[int, int, int, tuple[int, ...]] | Array] = []
        for name in names:
            entry = self.entries[name]
            if entry.parts or entry.dtype in (dtypes.STRING, dtypes.VARIANT):
                places.append(self.array(name))
            else:
                places.append((numbers[entry.shard], entry.offset, entry.dtype, tuple(entry.shape)))
        pieces = self._pieces([name for name in needed if not self.entries[name].parts])
        descriptors: list[int] = []
        try:
            for file in self._shards.values():
                descriptors.append(file.lend())
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        sizes = tuple(file.size for file in self._shards.values())
        ranges = tuple((numbers[shard], start, stop) for shard, start, stop in _ranges(pieces))
        return Loan(tuple(descriptors), sizes, places, ranges)

    def marks(self, name: str) -> list[tuple[object, ...]]:
        """Return a value that is the same only for tensors with the same bytes.

        It consists of the file, place, checksum, dtype and shape of each piece.
        """
        pieces = self.entries[name].pieces
        return [(self._shards[p.shard].stamp, p.offset, p.size, p.crc32c, p.dtype, p.shape) for p in pieces]

    def is_present(self, names: Iterable[str]) -> bool:
        """Return whether all of these tensors are in memory already, so that the kernel reads none from a disk."""
        ranges = _ranges(self._pieces(names))
        return all(self._shards[shard].is_present(start, stop - start) for shard, start, stop in ranges)

    def check(self, names: Iterable[str]) -> None:
        """Raise CorruptCheckpointError if a file was truncated: reading these tensors would end the process."""
        for piece in self._pieces(names):
            self._shards[piece.shard].check(piece.offset, piece.size)

    def _pieces(self, names: Iterable[str]) -> list[Entry]:
        return [piece for name in names for piece in self.entries[name].pieces]

    def _examine(self, claims: list[tuple[str, Entry]], *, finite: bool, threads: int) -> dict[_Place, Finding]:
        """Return the finding at each place. Several names may have the same place."""
        findings: dict[_Place, Finding] = {}
        dense: dict[_Place, Entry] = {}
        for name, piece in claims:
            if _place(piece) in findings:
                continue
            if piece.dtype in (dtypes.STRING, dtypes.VARIANT):
                checksum = self._checksum_of_objects(name, piece, self._memory(piece))
                findings[_place(piece)] = Finding(checksum, sound=True)
            else:
                self._numpy_dtype(name, piece)
                dense[_place(piece)] = piece
        if not self._mapped:
            each(self._memory, dense.values(), threads=threads)
        regions = [self._region(piece, finite=finite) for piece in dense.values()]
        return findings | dict(zip(dense, examine(regions, threads=threads), strict=True))

    def _region(self, piece: Entry, *, finite: bool) -> Region:
        check = self._shards[piece.shard].check
        dtype = dtypes.to_numpy(piece.dtype) if finite or piece.dtype == dtypes.BOOL else None
        return Region(self._memory(piece), dtype, lambda start, size: check(piece.offset + start, size))

    def _read_through(self, name: str, piece: Entry, advance: Callable[[int], None], *, finite: bool) -> Finding:
        """Examine a piece in chunks of the file, without keeping its bytes in memory."""
        shard = self._shards[piece.shard]
        if piece.dtype in (dtypes.STRING, dtypes.VARIANT):
            checksum = self._checksum_of_objects(name, piece, self._read_objects(name, piece))
            advance(piece.size)
            return Finding(checksum, sound=True)
        dtype = self._numpy_dtype(name, piece)
        test = soundness(dtype) if finite else None
        checksum, sound, step = 0, True, max(1, PORTION // dtype.itemsize) * dtype.itemsize
        for start in range(0, piece.size, step):
            chunk = shard.read(piece.offset + start, min(step, piece.size - start))
            checksum = crc32c(chunk, checksum)
            sound = sound and (test is None or test(chunk))
            advance(len(chunk))
        return Finding(checksum, sound)

    def _read_objects(self, name: str, piece: Entry) -> memoryview:
        """Return the current bytes of strings or variants, which must be read together."""
        shard = self._shards[piece.shard]
        if piece.size > _OBJECTS:
            expected = f"at most {_OBJECTS} bytes of {dtypes.name(piece.dtype)} in {files.shown(name)}"
            raise CorruptCheckpointError(shard.path, expected=expected, found=piece.size)
        return shard.read(piece.offset, piece.size)

    def _unsound(self, name: str, piece: Entry) -> ParameterError:
        wrong = "bytes other than 0 and 1" if piece.dtype == dtypes.BOOL else "NaN or infinity"
        path = self._shards[piece.shard].path
        return ParameterError(str(path), expected=f"finite values in {files.shown(name)}", found=wrong)

    def _mismatch(self, name: str, piece: Entry, checksum: int) -> CorruptCheckpointError | None:
        if (stored := mask(checksum)) == piece.crc32c:
            return None
        expected = f"checksum {piece.crc32c:#010x} of {files.shown(name)}"
        return CorruptCheckpointError(self._shards[piece.shard].path, expected=expected, found=f"{stored:#010x}")

    def _checksum_of_objects(self, name: str, piece: Entry, memory: memoryview) -> int:
        path = self._shards[piece.shard].path
        self._shards[piece.shard].check(piece.offset, piece.size)
        if piece.dtype == dtypes.VARIANT:
            return index.checksum_of_variants(memory, piece.shape, path=path, name=name)
        return index.decode_strings(memory, piece.shape, path=path, name=name)[1]

    def _values(self, name: str, piece: Entry, dtype: np.dtype[np.generic]) -> Array:
        if piece.dtype == dtypes.STRING:
            path = self._shards[piece.shard].path
            return index.decode_strings(self._memory(piece), piece.shape, path=path, name=name)[0]
        if not piece.size:
            return np.empty(piece.shape, dtype)
        return np.frombuffer(self._memory(piece), dtype).reshape(piece.shape)

    def _memory(self, piece: Entry) -> memoryview:
        """Return the bytes of a piece. If the file is not mapped, the first call copies them."""
        return self._shards[piece.shard].memory(piece.offset, piece.size)

    def _numpy_dtype(self, name: str, entry: Entry) -> np.dtype[np.generic]:
        dtype = dtypes.to_numpy(entry.dtype)
        if dtype is None:
            found = f"{files.shown(name)} of {dtypes.name(entry.dtype)}"
            path = self._shards[entry.shard].path
            raise CorruptCheckpointError(path, expected="a dtype that can be read", found=found)
        return dtype


def _place(piece: Entry) -> _Place:
    return piece.shard, piece.offset, piece.size, piece.dtype


def _ranges(pieces: Iterable[Entry]) -> list[tuple[int, int, int]]:
    """Return shard, start and stop of the ranges of these pieces, ascending. Adjacent pieces share a range."""
    ranges: list[tuple[int, int, int]] = []
    for shard, offset, size, _ in sorted({_place(piece) for piece in pieces}):
        start, stop = offset, offset + size
        if ranges and shard == ranges[-1][0] and offset < ranges[-1][2] + _GAP:
            _, start, before = ranges.pop()
            stop = max(stop, before)
        ranges.append((shard, start, stop))
    return ranges


def _check_bounds(entries: Mapping[str, Entry], shards: Mapping[int, DataFile]) -> None:
    for name, piece in ((name, piece) for name, entry in entries.items() for piece in entry.pieces):
        shard = shards[piece.shard]
        if piece.offset + piece.size > shard.size:
            expected = f"{piece.size} bytes at {piece.offset} for {files.shown(name)}"
            raise CorruptCheckpointError(shard.path, expected=expected, found=f"a file of {shard.size} bytes")
