"""Writes checkpoints that TensorFlow reads: tensors aligned, so that they can be used where they lie."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from paramsync import dtypes
from paramsync.checkpoint import digests, tensor_bytes
from paramsync.checkpoint.data_file import ALIGNMENT, FilePool, FileStamp, PooledFile, seal_of
from paramsync.checkpoint.tensor_bytes import Layout, portions
from paramsync.dtypes import Array
from paramsync.errors import NotFiniteError, ParameterError
from paramsync.host import files
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Entry, Index, data_file, index_file
from paramsync.tensorbundle.sstable import mask

LINKED = 8  # data files that a checkpoint shares with the one before

_PAGE = 4096
_STALE = 0.5  # the share of a file's bytes that may belong to no tensor any more
_WORTH = 1 << 20  # bytes that are worth a data file of their own, whatever their share,
_SHARE = 1 / 64  # and the share that is, however few bytes it is
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
    hashed: Mapping[str, builtins.bytes] = field(default_factory=dict)  # their digests, where they are asked for

    def checksum(self) -> str:
        """The digest of what the tensors are, wherever they lie."""
        return index.digest(self.entries)

    def digest(self) -> str:
        """The same, of their bytes in place of their checksums; "" where no digests are made."""
        return digests.of_checkpoint(self.entries, self.hashed) if self.hashed else ""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """A data file of a checkpoint: the bytes of its tensors when it was written, and its stamp since then.

    `names` are the tensors that the checkpoint has in it.
    """

    path: Path
    file: PooledFile
    bytes: int
    stamp: FileStamp
    names: tuple[str, ...]

    def is_sound(self) -> bool:
        """Whether the file is there, and nobody has cut it or written into it by a system call."""
        with suppress(OSError):
            return FileStamp.of(self.path.lstat()) == self.stamp
        return False


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The fate of each tensor. `linked` are shards that stay as they are, with the names that stay in each.

    `moved` tensors did not change but cannot stay: they get a shard of their own, which the next checkpoint links.
    `changed` tensors get another.
    """

    linked: Mapping[int, tuple[str, ...]]
    moved: tuple[str, ...]
    changed: tuple[str, ...]


class _NoLinkError(Exception):
    """A data file of the checkpoint before cannot be linked. Nothing is copied yet."""


class CheckpointWriter:
    """Writes one checkpoint after another, and takes unchanged tensors over from the one before.

    One thread owns it.
    """

    def __init__(self, pool: FilePool, *, durable: bool = False, digested: bool = False) -> None:
        """`digested`: the digests of all tensors are made. They are of the tensors as they are given: whoever writes
        into the files meanwhile has other ones."""
        self._pool = pool
        self._durable = durable
        self._digested = digested
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
        # A shard that a stranger removed or changed is not taken over, nor are values that nobody has looked at.
        sound = [shard.is_sound() and (self._last.finite or not finite) for shard in self._last.shards]
        same = self._same(sources, frozenset(unchanged), sound)

        def let_go(name: str) -> None:
            if name in same:  # the caller may hold on to it, so that it is known to be unchanged the next time
                return
            sources[name].let_go()
            if copied is not None:
                copied(name)

        shards = [
            (shard.bytes, shard.names if is_sound else ())
            for shard, is_sound in zip(self._last.shards, sound, strict=True)
        ]
        try:
            written = self._write(prefix, sources, decide(sizes, same, shards), finite=finite, copied=let_go)
        except _NoLinkError:
            written = self._write(prefix, sources, decide(sizes, same, ()), finite=finite, copied=let_go)
        return replace(written, unchanged=frozenset(same))

    def has(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether the checkpoint that `remember` was given last has these tensors, and no others."""
        sources = {name: _Source(name, tensor) for name, tensor in tensors.items()}
        sound = [shard.is_sound() for shard in self._last.shards]
        return sources.keys() == self._last.entries.keys() == self._same(sources, (), sound)

    def remember(self, written: Written) -> None:
        """Compare the next checkpoint with this one."""
        self._last = written

    def _write(
        self,
        prefix: Path,
        sources: Mapping[str, _Source],
        plan: WritePlan,
        *,
        finite: bool,
        copied: Callable[[str], object],
    ) -> Written:
        fresh = [names for names in (plan.moved, plan.changed) if names]
        if not sources:
            fresh = [()]  # a checkpoint has at least one shard
        count = len(plan.linked) + len(fresh)
        paths = [data_file(prefix, at, count) for at in range(count)]
        shards: list[Shard] = []
        entries: dict[str, Entry] = {}
        hashed: dict[str, bytes] = {}
        try:
            for number, (at, names) in enumerate(plan.linked.items()):
                shards.append(self._link(self._last.shards[at], paths[number], names))
                for name in names:
                    entry = self._last.entries[name]
                    entries[name] = entry if entry.shard == number else replace(entry, shard=number)
                    if self._digested:
                        hashed[name] = self._last.hashed[name]
            for number, names in enumerate(fresh, len(shards)):
                these = {name: sources[name] for name in names}
                shard, filled = self._fill(paths[number], number, these, hashed, finite=finite, copied=copied)
                shards.append(shard)
                entries |= filled
            entries = {name: entries[name] for name in sources}
            with files.aside(index_file(prefix), durable=self._durable) as listing:
                listing.write(index.encode(Index(count, entries)))
        except BaseException:
            for path in paths:
                with suppress(OSError):
                    self._pool.retire(path)
            raise
        return Written(
            entries,
            bytes=sum(entry.size for entry in entries.values()),
            bytes_written=sum(entries[name].size for names in fresh for name in names),
            shards=tuple(shards),
            finite=finite,
            seal=seal_of([shard.stamp for shard in shards], prefix.parent) if self._pool.in_memory else "",
            hashed=hashed,
        )

    def _link(self, shard: Shard, path: Path, names: tuple[str, ...]) -> Shard:
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
        return replace(shard, path=path, names=names)

    def _fill(
        self,
        path: Path,
        number: int,
        sources: Mapping[str, _Source],
        hashed: dict[str, bytes],
        *,
        finite: bool,
        copied: Callable[[str], object],
    ) -> tuple[Shard, dict[str, Entry]]:
        """Write a data file with these tensors, whose digests are added where they are made."""
        names = tuple(sources)
        layout = arrange(tuple([source.size for source in sources.values()]))
        looked_at = [source.numbers if finite else None for source in sources.values()]
        with self._pool.writing(path, layout.end) as file:
            contents = [source.content() for source in sources.values()]
            held = list(contents) if self._digested else []
            let_go = (lambda at: None) if held else (lambda at: copied(names[at]))
            findings = tensor_bytes.write(file, layout, contents, looked_at, let_go)
            if wrong := [name for name, finding in zip(names, findings, strict=True) if not finding.sound]:
                raise NotFiniteError(wrong)
        if held:
            hashed.update(zip(names, _digests(held, lambda at: copied(names[at])), strict=True))
        entries = {
            name: source.entry(number, offset, finding.checksum)
            for (name, source), offset, finding in zip(sources.items(), layout.offsets, findings, strict=True)
        }
        return Shard(path, file, sum(source.size for source in sources.values()), file.stamp, names), entries

    def _same(self, sources: Mapping[str, _Source], unchanged: Collection[str], sound: Sequence[bool]) -> set[str]:
        """The names whose values are those of the last checkpoint, of whose data files some are sound."""
        last = self._last.entries
        known = [name for name, source in sources.items() if source.is_like(last.get(name)) and sound[last[name].shard]]
        pairs = {
            name: (sources[name].content(), content)
            for name in known
            if name not in unchanged and (content := self._content(last[name])) is not None
        }
        same = {name for name, is_same in zip(pairs, tensor_bytes.same([*pairs.values()]), strict=True) if is_same}
        return same.union(name for name in known if name in unchanged)

    def _content(self, entry: Entry) -> Array | None:
        """The bytes of a tensor of the last checkpoint; None where its file is not mapped any more."""
        content = self._last.shards[entry.shard].file.content[entry.offset : entry.offset + entry.size]
        return content if len(content) == entry.size else None


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
        self._checksum: int | None = None  # where it is not that of the bytes
        if dtype == dtypes.STRING:
            encoded, self._checksum = index.encode_strings(array, name)
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
        like = entry and (entry.shape, entry.dtype, entry.size)
        return like == (self._shape, self._dtype, self.size)


def _digests(contents: list[Array], done: Callable[[int], object]) -> list[bytes]:
    """The digest of each, which is taken out of the list then, before `done` is told of it."""

    def let_go(at: int) -> None:
        contents[at] = np.empty(0, np.uint8)
        done(at)

    sizes = [len(content) for content in contents]
    return digests.of_tensors(sizes, lambda at, start, stop: contents[at][start:stop], done=let_go)


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


def decide(
    sizes: Mapping[str, int], unchanged: Collection[str], shards: Sequence[tuple[int, Sequence[str]]]
) -> WritePlan:
    """Plan a checkpoint of tensors of these sizes; the `unchanged` ones are in `shards` of the one before.

    Each of these is given as the bytes of its tensors when it was written, and the names still in it.
    A shard is linked while at least half of its bytes are still of use: tensors that changed leave stale bytes behind.
    Of too many shards the smallest are put together. Tensors that are not worth a file are written with the changed.
    """
    total = sum(sizes.values())
    staying = [tuple([name for name in names if name in unchanged]) for _, names in shards]
    left = [sum(sizes[name] for name in names) for names in staying]
    linked = [
        at
        for at, (written, _) in enumerate(shards)
        if _is_worth_a_file(left[at], total) and left[at] >= written * (1 - _STALE)
    ]
    if len(linked) > LINKED:
        linked = sorted(sorted(linked, key=lambda at: left[at])[-LINKED // 2 :])
    stay = {name for at in linked for name in staying[at]}
    moved = tuple([name for name in sizes if name in unchanged and name not in stay])
    if not _is_worth_a_file(sum(sizes[name] for name in moved), total):
        moved = ()
    stay.update(moved)
    return WritePlan({at: staying[at] for at in linked}, moved, tuple([name for name in sizes if name not in stay]))


@lru_cache(maxsize=8)
def arrange(sizes: tuple[int, ...]) -> Layout:
    """Lay tensors of these sizes out in one shard: one of a page or more begins on a page, others on 64 bytes."""
    offsets = []
    end = 0
    for size in sizes:
        if size:  # a place behind the end of the file would be out of bounds
            alignment = _PAGE if size >= _PAGE else ALIGNMENT
            end = -(-end // alignment) * alignment
        offsets.append(end)
        end += size
    return Layout(tuple(offsets), end, tuple(portions(sizes)))


def _is_worth_a_file(size: int, total: int) -> bool:
    return size > 0 and (size >= _WORTH or size >= total * _SHARE)
