"""Writes checkpoints that TensorFlow reads: tensors aligned, so that they can be used where they lie."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from paramsync import dtypes
from paramsync.checkpoint import data_writer, placement
from paramsync.checkpoint import seal as seals
from paramsync.checkpoint.file_pool import FilePool, PooledFile
from paramsync.checkpoint.seal import FileStamp
from paramsync.dtypes import Array
from paramsync.errors import NotFiniteError, ParameterError
from paramsync.host import files
from paramsync.tensorbundle import index, strings
from paramsync.tensorbundle.checksums import mask
from paramsync.tensorbundle.index import Entry, Index, data_file, index_file

_NO_LINK = {errno.EPERM, errno.EMLINK, errno.ENOENT, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS}


class Dlpack(Protocol):
    """A tensor of any framework that exchanges tensors through DLPack."""

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
    finite: bool = True  # all values were looked at
    seal: str = ""  # where the files are in memory

    def checksum(self) -> str:
        """The digest of what the tensors are, wherever they lie."""
        return index.digest(self.entries)


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """A data file of a checkpoint: the bytes of its tensors when it was written, and its stamp since then."""

    path: Path
    file: PooledFile
    bytes: int
    stamp: FileStamp

    def is_sound(self) -> bool:
        """Whether the file is there, and nobody has cut it or written into it by a system call."""
        with suppress(OSError):
            return FileStamp.of(self.path.lstat()) == self.stamp
        return False


class _NoLinkError(Exception):
    """A data file of the checkpoint before cannot be linked. Nothing is copied yet."""


class CheckpointWriter:
    """Writes one checkpoint after another, and takes unchanged tensors over from the one before.

    One thread owns it.
    """

    def __init__(self, pool: FilePool, *, durable: bool = False) -> None:
        self._pool = pool
        self._durable = durable
        self._last = Written()

    def write(
        self,
        prefix: Path,
        tensors: Mapping[str, Tensor],
        unchanged: Collection[str] = (),
        *,
        finite: bool = False,
        copied: Callable[[str], object] | None = None,
    ) -> Written:
        """Write a checkpoint. The data takes its names first, so that an index never speaks of data that is not there.

        `unchanged` are names whose values are those of what `remember` was given last; others are compared with that.
        `copied` is called, on any thread, with the name of each that changed, once its bytes are copied and nothing
        here refers to it any more. Object arrays hold strings, as bytes. Where anything fails, no file has a name of
        this checkpoint. Raises OSError, ParameterError for what TensorFlow cannot store, and NotFiniteError for NaN and
        infinity where all values are to be `finite`.
        """
        sources = {name: _Source(name, tensors[name]) for name in sorted(tensors, key=_key)}
        sizes = {name: source.size for name, source in sources.items()}
        sound = [shard.is_sound() for shard in self._last.shards]
        if finite and not self._last.finite:  # values that nobody has looked at are not taken over
            sound = [False] * len(sound)
        same = self._same(sources, frozenset(unchanged), sound)
        plan = placement.decide(sizes, same, self._candidates(sound))
        try:
            return self._write(prefix, sources, same, plan, finite=finite, copied=copied)
        except _NoLinkError:
            unlinked = placement.decide(sizes, same, ())
            return self._write(prefix, sources, same, unlinked, finite=finite, copied=copied)

    def remember(self, written: Written) -> None:
        """Compare the next checkpoint with this one."""
        self._last = written

    def _write(
        self,
        prefix: Path,
        sources: Mapping[str, _Source],
        same: Collection[str],
        plan: placement.Plan,
        *,
        finite: bool,
        copied: Callable[[str], object] | None,
    ) -> Written:
        fresh = [names for names in (plan.moved, plan.changed) if names]
        if not sources:
            fresh = [()]  # a checkpoint has at least one shard
        count = len(plan.linked) + len(fresh)
        paths = [data_file(prefix, at, count) for at in range(count)]
        shards: list[Shard] = []
        entries: dict[str, Entry] = {}

        def let_go(name: str) -> None:
            if name in same:  # the caller may hold on to it, so that it is known to be unchanged the next time
                return
            sources[name].let_go()
            if copied is not None:
                copied(name)

        try:
            for at, names in plan.linked.items():
                entries.update(_moved(self._last.entries, names, len(shards)))
                shards.append(self._link(self._last.shards[at], paths[len(shards)]))
            for names in fresh:
                path = paths[len(shards)]
                shards.append(self._fill(path, len(shards), names, sources, entries, finite=finite, copied=let_go))
            entries = {name: entries[name] for name in sources}
            with files.aside(index_file(prefix), durable=self._durable) as listing:
                listing.write(index.encode(Index(count, entries)))
        except BaseException:
            for path in paths:
                with suppress(OSError):
                    self._pool.retire(path)
            raise
        bytes_written = sum(entries[name].size for names in fresh for name in names)
        total = sum(entry.size for entry in entries.values())
        seal = seals.seal([shard.stamp for shard in shards], prefix.parent) if self._pool.in_memory else ""
        return Written(entries, total, bytes_written, frozenset(same), tuple(shards), finite, seal)

    def _link(self, shard: Shard, path: Path) -> Shard:
        """Raises _NoLinkError where this file system, or this file, has no more names to give."""
        try:
            try:
                os.link(shard.path, path, follow_symlinks=False)
            except FileExistsError:
                path.unlink()
                os.link(shard.path, path, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NO_LINK:
                raise _NoLinkError from error
            raise
        self._pool.use(shard.file)
        return replace(shard, path=path)

    def _fill(
        self,
        path: Path,
        shard: int,
        names: Sequence[str],
        sources: Mapping[str, _Source],
        entries: dict[str, Entry],
        *,
        finite: bool,
        copied: Callable[[str], object],
    ) -> Shard:
        """Write a data file, and add the entries of its tensors."""
        written = [sources[name] for name in names]
        layout = placement.arrange(tuple([source.size for source in written]))
        looked_at = [source.numbers if finite else None for source in written]
        with self._pool.writing(path, layout.end) as file:
            contents = [source.content() for source in written]
            found = data_writer.write(file, layout, contents, looked_at, lambda at: copied(names[at]))
            if wrong := [name for name, finding in zip(names, found, strict=True) if not finding.sound]:
                raise NotFiniteError(wrong)
        for name, offset, finding in zip(names, layout.offsets, found, strict=True):
            entries[name] = sources[name].entry(shard, offset, finding.checksum)
        return Shard(path, file, sum(source.size for source in written), file.stamp)

    def _same(self, sources: Mapping[str, _Source], told: Collection[str], sound: Sequence[bool]) -> set[str]:
        """The names whose values are those of the last checkpoint, of whose data files some are sound."""
        last = self._last.entries
        known = [name for name, source in sources.items() if source.is_like(last.get(name)) and sound[last[name].shard]]
        found = {name for name in known if name in told}
        others = {
            name: memory for name in known if name not in told and (memory := self._content(last[name])) is not None
        }
        pairs = [(sources[name].content(), memory) for name, memory in others.items()]
        return found.union(name for name, same in zip(others, data_writer.same(pairs), strict=True) if same)

    def _candidates(self, sound: Sequence[bool]) -> list[placement.Shard]:
        """The shards of the last checkpoint; one that a stranger removed or changed has nothing to offer."""
        names: list[list[str]] = [[] for _ in self._last.shards]
        for name, entry in self._last.entries.items():
            names[entry.shard].append(name)
        return [
            placement.Shard(shard.bytes, tuple(listed) if is_sound else ())
            for shard, listed, is_sound in zip(self._last.shards, names, sound, strict=True)
        ]

    def _content(self, entry: Entry) -> Array | None:
        """The bytes of a tensor of the last checkpoint; None where its file is not mapped any more."""
        found = self._last.shards[entry.shard].file.content[entry.offset : entry.offset + entry.size]
        return found if len(found) == entry.size else None


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

    def let_go(self) -> None:
        """Release the array, whose bytes are in a file: only the entry is still asked for."""
        self._array = np.empty(0, np.uint8)

    def content(self) -> Array:
        """The bytes, row by row; the tensor's own where it has them so."""
        return np.ascontiguousarray(self._array).reshape(-1).view(np.uint8)

    @property
    def numbers(self) -> np.dtype[np.generic] | None:
        """The dtype of numbers that may be NaN or infinite; None for other values."""
        return self._array.dtype if self._array.dtype.kind in "fcV" else None

    def entry(self, shard: int, offset: int, checksum: int) -> Entry:
        stored = checksum if self._checksum is None else self._checksum
        return Entry(self._dtype, self._shape, shard, offset, self.size, mask(stored))

    def is_like(self, entry: Entry | None) -> bool:
        """Whether the entry is that of a tensor of the same dtype, shape and size."""
        found = entry and (entry.shape, entry.dtype, entry.size)
        return found == (self._shape, self._dtype, self.size)


def _key(name: object) -> bytes:
    """The key under which a checkpoint lists a tensor, and by which it sorts them."""
    key = name.encode(errors="replace") if isinstance(name, str) else b""
    if not key or key[0] == 0 or key.decode() != name:  # the keys of the header and of slices; lone surrogates
        expected = "names in UTF-8 that are neither empty nor begin with NUL"
        raise ParameterError("a checkpoint", expected=expected, found=files.shown(name))
    return key


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


def _moved(entries: Mapping[str, Entry], names: Iterable[str], shard: int) -> dict[str, Entry]:
    """These entries when their data file has that number, which it mostly had before."""
    found = {name: entries[name] for name in names}
    return {name: entry if entry.shard == shard else replace(entry, shard=shard) for name, entry in found.items()}


def write(prefix: Path, tensors: Mapping[str, Tensor]) -> Written:
    """Write one checkpoint, whatever was there before. Raises as `CheckpointWriter.write` does."""
    pool = FilePool(prefix.parent)
    try:
        return CheckpointWriter(pool).write(prefix, tensors)
    finally:
        pool.trim(keep=0)
        pool.close()
