"""A checkpoint, held: its index read and checked, its tensors as arrays where they lie in the files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from paramsync import dtypes
from paramsync.checkpoint import seal
from paramsync.checkpoint.data_file import Find, Held, Mapped, Outline, hold
from paramsync.checkpoint.examine import Finding, Region, examine
from paramsync.checkpoint.extents import Place, place, stretches
from paramsync.checkpoint.seal import FileId, Trace
from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError, ParameterError, UnreadableError
from paramsync.host import files
from paramsync.host.parallel import THREADS, each
from paramsync.tensorbundle import index, slices, strings
from paramsync.tensorbundle.checksums import crc32c, mask
from paramsync.tensorbundle.index import Entry, data_file, index_file

_CHUNK = 4 << 20  # bytes that are read at once where nothing is kept
_OBJECTS = 1 << 30  # bytes of strings in one tensor that are worth looking at: their lengths have to be known together
_LOOKS = 5  # how often a checkpoint that changes while it is opened is looked at again


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bundle:
    """A checkpoint whose index was read and checked and whose data files are held. Safe to use from any thread.

    As long as the bundle, or any array or tensor of it that was not copied, is alive, no publisher of ours overwrites
    these files. They may lose their names.
    """

    prefix: Path
    entries: Mapping[str, Entry]
    _shards: Mapping[int, Held]
    _mapped: bool

    @classmethod
    def open(cls, prefix: Path, *, mapped: bool = True, find: Find | None = None) -> Bundle:
        """Hold a checkpoint's files and make sure that they are what the index speaks of. No tensor is read.

        1. Read the index.
        2. Open each data file by its name, take a shared lock on it, and map it.
        3. See that each name still leads to the file that was locked, and that the index is still what was read.
        4. Where it is not so, let go of everything and begin again, a few times.

        A publisher that wants to use a data file again first takes its name away, then asks for the exclusive lock,
        then writes. Where it took the name away before 3 looked, 3 finds the name gone, or leading to another file.
        Where it took it away later, the shared lock was there before it asked, and it leaves the file alone. The name
        cannot have come back with other content either, for then the index of that name has changed.

        `mapped=False` copies each tensor when it is first asked for, so that nobody can change it, or take it away by
        truncating the file, once it was checked. For checkpoints of writers that know nothing of these locks.

        What `find` gives was opened and mapped before: ahead of the name that it has now, and the lock is taken on that
        very open file; or for another checkpoint that has the same file, and is locked since then.

        Raises CorruptCheckpointError where the files are not a whole checkpoint, or go on changing, UnreadableError
        where they cannot be read now.
        """
        for _ in range(_LOOKS):
            if (bundle := cls._look(prefix, mapped=mapped, find=find)) is not None:
                return bundle
        raise CorruptCheckpointError(
            index_file(prefix),
            expected="a checkpoint at rest",
            found=f"one that changed {_LOOKS} times while it was read",
        )

    @classmethod
    def _look(cls, prefix: Path, *, mapped: bool, find: Find | None) -> Bundle | None:
        """None where the files changed meanwhile."""
        listing = index_file(prefix)
        content = index.content(listing)
        found = index.decode(content, path=listing)
        shards: dict[int, Held] = {}
        try:
            for shard in {piece.shard for entry in found.entries.values() for piece in entry.pieces}:
                one = hold(data_file(prefix, shard, found.shards), mapped=mapped, find=find)
                if one is None:
                    return None
                shards[shard] = one
            _check_bounds(found.entries, shards)
        except CorruptCheckpointError:
            if index.content(listing) == content:
                raise
            return None
        if not all(one.has_its_name() for one in shards.values()) or index.content(listing) != content:
            return None
        return cls(prefix, MappingProxyType(dict(found.entries)), shards, mapped)

    def array(self, name: str) -> Array:
        """The tensor, in the memory that is held (strings: an object array of bytes), which it keeps alive.

        Its checksum is not checked; its address is not aligned where TensorFlow wrote the file and it is mapped. A
        partitioned variable is put together from its parts, which is a copy. Raises KeyError for a name that is not in
        `entries`, CorruptCheckpointError for malformed strings, a dtype that numpy lacks, or a file that was cut since.
        """
        entry = self.entries[name]
        dtype = self._numpy_dtype(name, entry)
        if entry.parts:
            parts = ((part.start, self._values(name, part.entry, dtype)) for part in entry.parts)
            return slices.assemble(entry.shape, dtype, parts)
        return self._values(name, entry, dtype)

    def verify(self, names: Iterable[str], *, finite: bool = False, threads: int = THREADS) -> None:
        """Compute the checksum of each tensor and, with `finite`, look at its values: one pass over memory for both.
        Bools are looked at in any case.

        Afterwards all of it is in memory and in the page table. Runs on at most so many threads, which do not keep the
        interpreter. Raises CorruptCheckpointError for the first tensor that differs, ParameterError for the first with
        values that must not be served: NaN, infinity, a bool that is neither 0 nor 1.
        """
        claims = [(name, piece) for name in names for piece in self.entries[name].pieces]
        found = self._examined(claims, finite=finite, threads=threads)
        for name, piece in claims:
            finding = found[place(piece)]
            if error := self._mismatch(name, piece, finding.checksum):
                raise error
            if not finding.sound:
                wrong = "bytes other than 0 and 1" if piece.dtype == dtypes.BOOL else "NaN or infinity"
                path = self._shards[piece.shard].path
                raise ParameterError(str(path), expected=f"finite values in {files.shown(name)}", found=wrong)

    def faults(self, advance: Callable[[int], None]) -> dict[str, CorruptCheckpointError | UnreadableError]:
        """What is wrong with each tensor that is not what its checksum says, found without keeping any of it.

        For those who want to know and not to serve: it takes little memory, however large the files say they are. Runs
        on several threads, each of which tells `advance` how many bytes it has seen.
        """
        wrong: dict[str, CorruptCheckpointError | UnreadableError] = {}
        places: dict[Place, list[tuple[str, Entry]]] = {}
        for name, entry in self.entries.items():
            for piece in entry.pieces:
                places.setdefault(place(piece), []).append((name, piece))

        def look(claims: list[tuple[str, Entry]]) -> None:
            try:
                checksum = self._checksum(*claims[0], advance)
            except (CorruptCheckpointError, UnreadableError) as error:
                wrong.update((name, error) for name, _ in claims)
                return
            mismatches = ((name, self._mismatch(name, piece, checksum)) for name, piece in claims)
            wrong.update((name, error) for name, error in mismatches if error)

        each(look, places.values())
        return wrong

    @property
    def seal(self) -> str:
        """Of its data files as they were when they were held, see `paramsync.checkpoint.seal`."""
        return seal.seal([self._shards[number].trace for number in sorted(self._shards)], self.prefix.parent)

    def prefault(self, names: Iterable[str]) -> None:
        """Bring the tensors into memory and into the page table, so that nobody has to wait for them later.

        On this thread, which does not keep the interpreter. Raises CorruptCheckpointError where a file was cut.
        """
        pieces = [piece for name in names for piece in self.entries[name].pieces]
        for piece in pieces:
            self._memory(piece)
        for shard, start, stop in stretches(pieces):
            self._shards[shard].prefault(start, stop - start)

    def outlines(self, names: Iterable[str]) -> list[Outline]:
        """Of each data file, where these tensors are."""
        pieces = (piece for name in names for piece in self.entries[name].pieces)
        found = {shard: Outline(one.trace.file_id, one.size) for shard, one in self._shards.items()}
        for shard, start, stop in stretches(pieces):
            found[shard].stretches.append((start, stop))
        return list(found.values())

    @property
    def file_ids(self) -> set[FileId]:
        """Of its data files."""
        return {one.trace.file_id for one in self._shards.values()}

    @property
    def mapped_files(self) -> dict[Trace, Mapped]:
        """Its data files, where they are mapped, by what tells them from all others."""
        return {one.trace: one for one in self._shards.values() if isinstance(one, Mapped)}

    def marks(self, name: str) -> list[tuple[object, ...]]:
        """What tells the bytes of a tensor from others: in which files, last written when, what is where."""
        pieces = self.entries[name].pieces
        return [(self._shards[p.shard].trace, p.offset, p.size, p.crc32c, p.dtype, p.shape) for p in pieces]

    def is_present(self, names: Iterable[str]) -> bool:
        """Whether none of these tensors would be read from a disk now, as far as the kernel tells."""
        pieces = (piece for name in names for piece in self.entries[name].pieces)
        return all(self._shards[shard].is_present(start, stop - start) for shard, start, stop in stretches(pieces))

    def check(self, names: Iterable[str]) -> None:
        """Raise CorruptCheckpointError where a file was cut, so that reading these tensors would end the process."""
        for piece in (piece for name in names for piece in self.entries[name].pieces):
            self._shards[piece.shard].check(piece.offset, piece.size)

    def let_pages_go(self, but: Collection[FileId] = ()) -> None:
        """Take what is mapped, but these files, out of this process's page table, until somebody reads it.

        What is copied stays. On this thread, which does not keep the interpreter. Nobody may have written to an array
        of it.
        """
        for shard in self._shards.values():
            if shard.trace.file_id not in but:
                shard.let_pages_go()

    def _examined(self, claims: list[tuple[str, Entry]], *, finite: bool, threads: int) -> dict[Place, Finding]:
        """What is found at each place; several names may have the same."""
        found: dict[Place, Finding] = {}
        dense: dict[Place, Entry] = {}
        for name, piece in claims:
            if place(piece) in found:
                continue
            if piece.dtype in (dtypes.STRING, dtypes.VARIANT):
                checksum = self._checksum_of_objects(name, piece, self._memory(piece))
                found[place(piece)] = Finding(checksum, sound=True)
            else:
                self._numpy_dtype(name, piece)
                dense[place(piece)] = piece
        if not self._mapped:
            each(self._copy, dense.values(), threads=threads)
        regions = [self._region(piece, finite=finite) for piece in dense.values()]
        return found | dict(zip(dense, examine(regions, threads=threads), strict=True))

    def _region(self, piece: Entry, *, finite: bool) -> Region:
        shard = self._shards[piece.shard]

        def check(start: int, size: int) -> None:
            shard.check(piece.offset + start, size)

        looked_at = finite or piece.dtype == dtypes.BOOL
        return Region(self._memory(piece), dtypes.to_numpy(piece.dtype) if looked_at else None, check)

    def _checksum(self, name: str, piece: Entry, advance: Callable[[int], None]) -> int:
        """The checksum of what is in the file, not masked, in chunks of which none is kept."""
        shard = self._shards[piece.shard]
        if piece.dtype in (dtypes.STRING, dtypes.VARIANT):
            if piece.size > _OBJECTS:
                expected = f"at most {_OBJECTS} bytes of {dtypes.name(piece.dtype)} in {files.shown(name)}"
                raise CorruptCheckpointError(shard.path, expected=expected, found=piece.size)
            checksum = self._checksum_of_objects(name, piece, shard.read(piece.offset, piece.size))
            advance(piece.size)
            return checksum
        self._numpy_dtype(name, piece)
        checksum = 0
        for start in range(0, piece.size, _CHUNK):
            chunk = shard.read(piece.offset + start, min(_CHUNK, piece.size - start))
            checksum = crc32c(chunk, checksum)
            advance(len(chunk))
        return checksum

    def _mismatch(self, name: str, piece: Entry, checksum: int) -> CorruptCheckpointError | None:
        if (stored := mask(checksum)) == piece.crc32c:
            return None
        expected = f"checksum {piece.crc32c:#010x} of {files.shown(name)}"
        return CorruptCheckpointError(self._shards[piece.shard].path, expected=expected, found=f"{stored:#010x}")

    def _checksum_of_objects(self, name: str, piece: Entry, memory: memoryview) -> int:
        path = self._shards[piece.shard].path
        self._shards[piece.shard].check(piece.offset, piece.size)
        if piece.dtype == dtypes.VARIANT:
            return strings.checksum_of_variants(memory, piece.shape, path=path, name=name)
        return strings.decode(memory, piece.shape, path=path, name=name)[1]

    def _values(self, name: str, piece: Entry, dtype: np.dtype[np.generic]) -> Array:
        if piece.dtype == dtypes.STRING:
            path = self._shards[piece.shard].path
            return strings.decode(self._memory(piece), piece.shape, path=path, name=name)[0]
        if not piece.size:
            return np.empty(piece.shape, dtype)
        return np.frombuffer(self._memory(piece), dtype).reshape(piece.shape)

    def _copy(self, piece: Entry) -> None:
        self._memory(piece)

    def _memory(self, piece: Entry) -> memoryview:
        """Copies the bytes at the first call where they are not mapped."""
        return self._shards[piece.shard].memory(piece.offset, piece.size)

    def _numpy_dtype(self, name: str, entry: Entry) -> np.dtype[np.generic]:
        dtype = dtypes.to_numpy(entry.dtype)
        if dtype is None:
            found = f"{files.shown(name)} of {dtypes.name(entry.dtype)}"
            path = self._shards[entry.shard].path
            raise CorruptCheckpointError(path, expected="a dtype that can be read", found=found)
        return dtype


def _check_bounds(entries: Mapping[str, Entry], shards: Mapping[int, Held]) -> None:
    for name, entry in entries.items():
        for piece in entry.pieces:
            shard = shards[piece.shard]
            if piece.offset + piece.size > shard.size:
                expected = f"{piece.size} bytes at {piece.offset} for {files.shown(name)}"
                raise CorruptCheckpointError(shard.path, expected=expected, found=f"a file of {shard.size} bytes")
