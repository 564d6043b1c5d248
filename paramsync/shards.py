"""Writes checkpoints that TensorFlow reads: tensors aligned, so that they can be used where they lie."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from paramsync import dtypes, files, index, pieces, plan, strings
from paramsync.checksums import mask
from paramsync.dtypes import Array
from paramsync.errors import ParameterError
from paramsync.index import Entry, Index, data_file, index_file
from paramsync.spares import DataFile, Spares

_NO_LINK = {errno.EPERM, errno.EMLINK, errno.ENOENT, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS}


class Dlpack(Protocol):
    """What can be exchanged through DLPack."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


Tensor: TypeAlias = npt.ArrayLike | Dlpack


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A checkpoint that was written. `unchanged` are the names whose values were in the one before, too."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    bytes: int = 0
    bytes_written: int = 0
    unchanged: frozenset[str] = frozenset()
    shards: tuple[Shard, ...] = ()

    def checksum(self) -> str:
        """The digest of what the tensors are, wherever they lie."""
        return index.digest(self.entries)


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """A data file of a checkpoint: how many bytes its tensors had when it was written, and what identifies it since."""

    path: Path
    file: DataFile
    bytes: int
    identity: tuple[int, int, int]

    def is_sound(self) -> bool:
        """Whether it is there, and nobody has cut it or written into it by a system call."""
        with suppress(OSError):
            return _identity(self.path) == self.identity
        return False


class ShardWriter:
    """Writes one checkpoint after another, and takes over from the one before what did not change.

    One thread owns it.
    """

    def __init__(self, spares: Spares, *, durable: bool = False) -> None:
        self._spares = spares
        self._durable = durable
        self._last = Written()

    def write(self, prefix: Path, tensors: Mapping[str, Tensor], unchanged: Collection[str] = ()) -> Written:
        """Write a checkpoint. The data takes its names first, so that an index never speaks of data that is not there.

        `unchanged` are names whose values are those of what `remember` was given last; others are compared with that.
        Object arrays hold strings, as bytes. Where anything fails, no file has a name of this checkpoint. Raises
        OSError, and ParameterError for what TensorFlow cannot store.
        """
        sources = {name: _Source(name, tensors[name]) for name in sorted(tensors, key=_key)}
        sizes = {name: source.size for name, source in sources.items()}
        sound = [shard.is_sound() for shard in self._last.shards]
        same = self._same(sources, frozenset(unchanged), sound)
        decided = plan.decide(sizes, same, self._candidates(sound))
        try:
            return self._write(prefix, sources, same, decided)
        except OSError as error:
            if error.errno not in _NO_LINK or not decided.linked:
                raise
        return self._write(prefix, sources, same, plan.decide(sizes, same, ()))

    def remember(self, written: Written) -> None:
        """This is now the checkpoint before."""
        self._last = written

    def _write(
        self, prefix: Path, sources: Mapping[str, _Source], same: Collection[str], decided: plan.Plan
    ) -> Written:
        fresh = [names for names in (decided.moved, decided.changed) if names]
        if not sources:
            fresh = [()]  # a checkpoint has at least one shard
        count = len(decided.linked) + len(fresh)
        paths = [data_file(prefix, at, count) for at in range(count)]
        shards: list[Shard] = []
        entries: dict[str, Entry] = {}
        try:
            for at, names in decided.linked.items():
                entries.update(_moved(self._last.entries, names, len(shards)))
                shards.append(self._link(self._last.shards[at], paths[len(shards)]))
            for names in fresh:
                shards.append(self._fill(paths[len(shards)], len(shards), names, sources, entries))
            entries = {name: entries[name] for name in sources}
            with files.aside(index_file(prefix), durable=self._durable) as listing:
                listing.write(index.encode(Index(count, entries)))
        except BaseException:
            for path in paths:
                with suppress(OSError):
                    self._spares.retire(path)
            raise
        bytes_written = sum(entries[name].size for names in fresh for name in names)
        total = sum(entry.size for entry in entries.values())
        return Written(entries, total, bytes_written, frozenset(same), tuple(shards))

    def _link(self, shard: Shard, path: Path) -> Shard:
        try:
            os.link(shard.path, path, follow_symlinks=False)
        except FileExistsError:
            path.unlink()
            os.link(shard.path, path, follow_symlinks=False)
        self._spares.use(shard.file)
        return replace(shard, path=path)

    def _fill(
        self, path: Path, shard: int, names: Sequence[str], sources: Mapping[str, _Source], entries: dict[str, Entry]
    ) -> Shard:
        """Write a data file; adds the entries of what is in it."""
        layout = plan.arrange(tuple([sources[name].size for name in names]))
        with self._spares.writing(path, layout.end) as file:
            checksums = pieces.write(file, layout, [sources[name].content() for name in names])
        for name, offset, checksum in zip(names, layout.offsets, checksums, strict=True):
            entries[name] = sources[name].entry(shard, offset, checksum)
        return Shard(path, file, sum(sources[name].size for name in names), _identity(path))

    def _same(self, sources: Mapping[str, _Source], told: Collection[str], sound: Sequence[bool]) -> set[str]:
        """The names whose values are those of the last checkpoint, of whose data files some are sound."""
        last = self._last.entries
        known = [name for name, one in sources.items() if one.is_like(last.get(name)) and sound[last[name].shard]]
        found = {name for name in known if name in told}
        others = [name for name in known if name not in told and self._is_mapped(name)]
        pairs = [(sources[name].content(), self._content(self._last.entries[name])) for name in others]
        return found.union(name for name, same in zip(others, pieces.same(pairs), strict=True) if same)

    def _candidates(self, sound: Sequence[bool]) -> list[plan.Shard]:
        """The shards of the last checkpoint; one that a stranger removed or changed has nothing to offer."""
        names: list[list[str]] = [[] for _ in self._last.shards]
        for name, entry in self._last.entries.items():
            names[entry.shard].append(name)
        return [
            plan.Shard(shard.bytes, tuple(those) if is_sound else ())
            for shard, those, is_sound in zip(self._last.shards, names, sound, strict=True)
        ]

    def _is_mapped(self, name: str) -> bool:
        entry = self._last.entries[name]
        return entry.offset + entry.size <= len(self._last.shards[entry.shard].file.content)

    def _content(self, entry: Entry) -> Array:
        return self._last.shards[entry.shard].file.content[entry.offset : entry.offset + entry.size]


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _moved(entries: Mapping[str, Entry], names: Iterable[str], shard: int) -> dict[str, Entry]:
    """These entries when their data file has that number, which it mostly had before."""
    found = {name: entries[name] for name in names}
    return {name: one if one.shard == shard else replace(one, shard=shard) for name, one in found.items()}


def write(prefix: Path, tensors: Mapping[str, Tensor]) -> Written:
    """Write one checkpoint, whatever was there before. Raises as `ShardWriter.write` does."""
    spares = Spares(prefix.parent)
    try:
        return ShardWriter(spares).write(prefix, tensors)
    finally:
        spares.trim(keep=0)
        spares.close()


def _key(name: object) -> bytes:
    """What a checkpoint lists a tensor under, and sorts it by."""
    key = name.encode(errors="replace") if isinstance(name, str) else b""
    if not key or key[0] == 0 or key.decode() != name:  # the keys of the header and of slices; lone surrogates
        expected = "names in UTF-8 that are neither empty nor begin with NUL"
        raise ParameterError("a checkpoint", expected=expected, found=files.shown(name))
    return key


class _Source:
    """A tensor to be written."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        array = _array(tensor, name)
        dtype = dtypes.from_numpy(array.dtype)
        if dtype is None:
            expected = "a dtype of TensorFlow's in little-endian order"
            raise ParameterError(files.shown(name), expected=expected, found=array.dtype)
        self._array = array
        self._shape = array.shape
        self._dtype = dtype
        self._checksum: int | None = None
        if dtype == dtypes.STRING:
            encoded, self._checksum = strings.encode(array, name)
            self._array = np.frombuffer(encoded, np.uint8)
        self.size: int = self._array.nbytes

    def content(self) -> Array:
        """The bytes, row by row; the tensor's own where it has them so."""
        return np.ascontiguousarray(self._array).reshape(-1).view(np.uint8)

    def entry(self, shard: int, offset: int, checksum: int) -> Entry:
        stored = checksum if self._checksum is None else self._checksum
        return Entry(self._dtype, self._shape, shard, offset, self.size, mask(stored))

    def is_like(self, entry: Entry | None) -> bool:
        """Whether that is the entry of a tensor of the same dtype, shape and size."""
        if entry is None:
            return False
        return entry.shape == self._shape and entry.dtype == self._dtype and entry.size == self.size


def _array(tensor: Any, name: str) -> Array:
    if isinstance(tensor, np.ndarray):
        return tensor
    try:
        if hasattr(tensor, "__dlpack__") and not hasattr(tensor, "__array__"):
            return np.from_dlpack(tensor)
        return np.asarray(tensor)
    except Exception as error:
        found = f"{type(tensor).__name__}: {' '.join(str(error).split()) or type(error).__name__}"
        raise ParameterError(files.shown(name), expected="an array", found=found) from error
