"""Writes checkpoints that TensorFlow reads. Tensors are aligned, so that readers use them in place."""

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
from paramsync.checkpoint.data_file import ALIGNMENT, FileStamp, seal_of
from paramsync.checkpoint.file_pool import FilePool, PooledFile
from paramsync.checkpoint.tensor_bytes import Layout, Piece, portions
from paramsync.dtypes import Array
from paramsync.errors import NotFiniteError, ParameterError
from paramsync.host import files
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Entry, Index, data_file, index_file
from paramsync.tensorbundle.sstable import mask

LINKED = 8  # how many data files a checkpoint may share with its predecessor

_PAGE = 4096
_STALE = 0.5  # a data file is linked only if at most this share of its bytes is stale
_WORTH = 1 << 20  # bytes: tensors that are at least this large together get their own data file
_SHARE = 1 / 64  # smaller tensors get a file too if they are together at least this share of the checkpoint
_NOTHING: Array = np.empty(0, np.uint8)
_NO_LINK = {errno.EPERM, errno.EMLINK, errno.ENOENT, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS}


class Dlpack(Protocol):
    """A tensor of any framework that exchanges tensors through DLPack."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


Tensor: TypeAlias = npt.ArrayLike | Dlpack

Range: TypeAlias = tuple[str, int, int]
"""The name of a tensor, and where some of its bytes start and stop."""


@dataclass(frozen=True, slots=True, eq=False)
class Arriving:
    """Tensors whose bytes `fill` writes straight into the data file.

    entries  dtype, shape and size of each tensor
    fill     writes adjacent ranges to their places in memory, on any thread; ranges start on multiples of PORTION
    threads  how many calls of `fill` may run at once
    """

    entries: Mapping[str, Entry]
    fill: Callable[[Sequence[Range], Sequence[Array]], object]
    threads: int


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A checkpoint that was written. `unchanged` names the tensors with the same values as in its predecessor."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    bytes: int = 0
    bytes_written: int = 0
    unchanged: frozenset[str] = frozenset()
    shards: tuple[Shard, ...] = ()
    finite: bool = True  # whether all values were checked to be finite
    seal: str = ""  # the state of the data files, see `seal_of`; "" for files that are not in memory

    def checksum(self) -> str:
        """Return a digest of the tensors' checksums, dtypes and shapes, but not of their places in files."""
        return index.digest(self.entries)

    def digest(self) -> str:
        """Return the digest of the tensors' bytes, see `digests.of_checkpoint`; "" if no digests were made."""
        made = {name: digest for shard in self.shards for name, digest in shard.digests.items()}
        return digests.of_checkpoint(self.entries, made) if made else ""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """A data file of a checkpoint.

    `bytes`, `stamp` and `digests` stay as they were when the file was written: the total size of its tensors, its
    stamp, and the digests of its tensors. `entries` has only the tensors that this checkpoint uses from the file.
    """

    path: Path
    number: int
    file: PooledFile
    bytes: int
    stamp: FileStamp
    entries: Mapping[str, Entry]
    digests: Mapping[str, builtins.bytes]

    def is_sound(self) -> bool:
        """Return whether the file exists, and nobody has truncated it or written to it by a system call."""
        with suppress(OSError):
            return FileStamp.of(self.path.lstat()) == self.stamp
        return False


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The shards of the next checkpoint.

    linked   shards of the last checkpoint to link, by number, each with the names of the tensors that it provides
    moved    unchanged tensors whose shard is not linked; they get a shard that the next checkpoint can link
    changed  all other tensors; they get another shard
    """

    linked: Mapping[int, tuple[str, ...]]
    moved: tuple[str, ...]
    changed: tuple[str, ...]


class _NoLinkError(Exception):
    """A data file of the last checkpoint cannot be linked. It is raised before anything is copied."""


class CheckpointWriter:
    """Writes one checkpoint after another, each of which links the data files of unchanged tensors.

    One thread owns it.
    """

    def __init__(self, pool: FilePool, *, durable: bool = False, digested: bool = False) -> None:
        """If `digested`, computes digests of the tensors. They show whether another program writes to a file later."""
        self._pool = pool
        self._durable = durable
        self._digested = digested
        self._last = Written()

    def write(
        self,
        prefix: Path,
        tensors: Mapping[str, Tensor] | Arriving,
        unchanged: Collection[str] = (),
        *,
        finite: bool = False,
        copied: Callable[[str], object] | None = None,
    ) -> Written:
        """Write a checkpoint. Data files get their names first, so that an index never names missing data.

        Args:
            tensors: The tensors by name. An object array holds strings, as bytes.
            unchanged: Names of tensors that have the same values as in the remembered checkpoint. All other tensors
                are compared with it, except `Arriving` tensors.
            finite: Whether to refuse NaN and infinity. The values of `Arriving` tensors are never checked.
            copied: Called on any thread with the name of each changed tensor, once its bytes are copied and the writer
                no longer refers to the tensor.

        Raises OSError; ParameterError for tensors that TensorFlow cannot store; NotFiniteError; for `Arriving` tensors
        every error of their `fill`, and CorruptCheckpointError for malformed strings. After an error, no file has a
        name of this checkpoint.
        """
        arriving = tensors if isinstance(tensors, Arriving) else None
        given: Mapping[str, Tensor | Entry] = tensors.entries if isinstance(tensors, Arriving) else tensors
        sources = {name: _Source(name, given[name]) for name in sorted(given, key=_key)}
        sizes = {name: source.size for name, source in sources.items()}
        # Link no shard that another program removed or changed, and none with unchecked values if all must be finite.
        sound = [shard.is_sound() and (self._last.finite or not finite) for shard in self._last.shards]
        same = self._same(sources, frozenset(unchanged), sound)

        def let_go(name: str) -> None:
            if name in same:  # the caller may keep this tensor, to recognise it as unchanged next time
                return
            sources[name].let_go()
            if copied is not None:
                copied(name)

        shards = [
            (shard.bytes, tuple(shard.entries) if is_sound else ())
            for shard, is_sound in zip(self._last.shards, sound, strict=True)
        ]
        try:
            plan = decide(sizes, same, shards)
            written = self._write(prefix, sources, plan, finite=finite, copied=let_go, arriving=arriving)
        except _NoLinkError:
            plan = decide(sizes, same, ())
            written = self._write(prefix, sources, plan, finite=finite, copied=let_go, arriving=arriving)
        return replace(written, unchanged=frozenset(same))

    def has(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether the remembered checkpoint has these tensors, and no other tensors."""
        sources = {name: _Source(name, tensor) for name, tensor in tensors.items()}
        sound = [shard.is_sound() for shard in self._last.shards]
        return sources.keys() == self._last.entries.keys() == self._same(sources, (), sound)

    def remember(self, written: Written) -> None:
        """Compare the next checkpoint with this one, and link its files. Call this only after its publication."""
        self._last = written

    def _write(
        self,
        prefix: Path,
        sources: Mapping[str, _Source],
        plan: WritePlan,
        *,
        finite: bool,
        copied: Callable[[str], object],
        arriving: Arriving | None,
    ) -> Written:
        fresh = [names for names in (plan.moved, plan.changed) if names]
        if not sources:
            fresh = [()]  # a checkpoint has at least one shard
        count = len(plan.linked) + len(fresh)
        paths = [data_file(prefix, at, count) for at in range(count)]
        shards: list[Shard] = []
        try:
            for number, (at, names) in enumerate(plan.linked.items()):
                shards.append(self._link(self._last.shards[at], number, paths[number], names))
            for number, names in enumerate(fresh, len(shards)):
                these = {name: sources[name] for name in names}
                if arriving is None:
                    shards.append(self._fill(paths[number], number, these, finite=finite, copied=copied))
                else:
                    shards.append(self._receive(paths[number], number, these, arriving))
            written = {name: entry for shard in shards for name, entry in shard.entries.items()}
            entries = {name: written[name] for name in sources}
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
        )

    def _link(self, shard: Shard, number: int, path: Path, names: tuple[str, ...]) -> Shard:
        """Give a data file of the last checkpoint another name, as the shard of this number.

        Raises _NoLinkError if the file system allows no link, or no more links to this file."""
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
        entries = {name: shard.entries[name] for name in names}
        if shard.number != number:
            entries = {name: replace(entry, shard=number) for name, entry in entries.items()}
        return replace(shard, path=path, number=number, entries=entries)

    def _fill(
        self,
        path: Path,
        number: int,
        sources: Mapping[str, _Source],
        *,
        finite: bool,
        copied: Callable[[str], object],
    ) -> Shard:
        """Write a data file with these tensors."""
        names = tuple(sources)
        layout = arrange(tuple([source.size for source in sources.values()]))
        checked = [source.numbers if finite else None for source in sources.values()]
        with self._pool.writing(path, layout.end) as file:
            contents = [source.content() for source in sources.values()]
            kept = list(contents) if self._digested else []
            let_go = (lambda at: None) if kept else (lambda at: copied(names[at]))
            findings = tensor_bytes.write(file, layout, contents, checked, let_go)
            if wrong := [name for name, finding in zip(names, findings, strict=True) if not finding.sound]:
                raise NotFiniteError(wrong)
        made: dict[str, bytes] = {}
        if kept:
            made = dict(zip(names, _digest(kept, lambda at: copied(names[at])), strict=True))
        entries = {
            name: source.entry(number, offset, finding.checksum)
            for (name, source), offset, finding in zip(sources.items(), layout.offsets, findings, strict=True)
        }
        size = sum(source.size for source in sources.values())
        return Shard(path, number, file, size, file.stamp, entries, made)

    def _receive(self, path: Path, number: int, sources: Mapping[str, _Source], arriving: Arriving) -> Shard:
        """Write a data file with these tensors, which `arriving.fill` fills."""
        names = tuple(sources)
        layout = arrange(tuple([source.size for source in sources.values()]))

        def fill(pieces: Sequence[Piece], places: Sequence[Array]) -> None:
            arriving.fill([(names[piece.tensor], piece.start, piece.stop) for piece in pieces], places)

        with self._pool.writing(path, layout.end) as file:
            findings = tensor_bytes.receive(file, layout, fill, threads=arriving.threads)
            entries = {}
            for (name, source), offset, finding in zip(sources.items(), layout.offsets, findings, strict=True):
                source.note(name, file.content[offset : offset + source.size], path)
                entries[name] = source.entry(number, offset, finding.checksum)
        size = sum(source.size for source in sources.values())
        return Shard(path, number, file, size, file.stamp, entries, {})

    def _same(self, sources: Mapping[str, _Source], unchanged: Collection[str], sound: Sequence[bool]) -> set[str]:
        """Return the names of tensors that the last checkpoint has with the same values in a `sound` shard."""
        last = self._last.entries
        known = [name for name, source in sources.items() if source.is_like(last.get(name)) and sound[last[name].shard]]
        compared = [name for name in known if name not in unchanged and sources[name].is_given]
        pairs = {
            name: (sources[name].content(), content)
            for name in compared
            if (content := self._content(last[name])) is not None
        }
        same = {name for name, is_same in zip(pairs, tensor_bytes.same([*pairs.values()]), strict=True) if is_same}
        return same.union(name for name in known if name in unchanged)

    def _content(self, entry: Entry) -> Array | None:
        """Return the bytes of a tensor of the last checkpoint; None if its file is not mapped any more."""
        content = self._last.shards[entry.shard].file.content[entry.offset : entry.offset + entry.size]
        return content if len(content) == entry.size else None


class _Source:
    """A tensor to write."""

    def __init__(self, name: str, tensor: Tensor | Entry) -> None:
        """`tensor` is an entry if the tensor's bytes are still to come."""
        # set only for strings, whose checksum is not the checksum of their stored bytes
        self._checksum: int | None = None
        self.is_given = not isinstance(tensor, Entry)
        if isinstance(tensor, Entry):
            self._array = _NOTHING
            self._shape, self._dtype, self.size = tensor.shape, tensor.dtype, tensor.size
            return
        array = _array(tensor, name)
        dtype = dtypes.from_numpy(array.dtype)
        if dtype is None:
            expected = "a dtype of TensorFlow's in little-endian order"
            raise ParameterError(files.shown(name), expected=expected, found=array.dtype)
        self._array = array
        self._shape = array.shape
        self._dtype = dtype
        if dtype == dtypes.STRING:
            encoded, self._checksum = index.encode_strings(array, name)
            self._array = np.frombuffer(encoded, np.uint8)
        self.size = self._array.nbytes

    def let_go(self) -> None:
        """Release the array, whose bytes are in a file now: only the entry is still needed."""
        self._array = _NOTHING

    def note(self, name: str, content: Array, path: Path) -> None:
        """Compute the checksum of `Arriving` strings from their bytes. Raises CorruptCheckpointError if malformed."""
        if self._dtype == dtypes.STRING:
            self._checksum = index.decode_strings(content.data, self._shape, path=path, name=name)[1]

    def content(self) -> Array:
        """Return the bytes in row-major order, without a copy if the tensor is stored in that order."""
        return np.ascontiguousarray(self._array).reshape(-1).view(np.uint8)

    @property
    def numbers(self) -> np.dtype[np.generic] | None:
        """The dtype if its values can be NaN or infinite, otherwise None."""
        return self._array.dtype if self._array.dtype.kind in "fcV" else None

    def entry(self, shard: int, offset: int, checksum: int) -> Entry:
        stored = checksum if self._checksum is None else self._checksum
        return Entry(self._dtype, self._shape, shard, offset, self.size, mask(stored))

    def is_like(self, entry: Entry | None) -> bool:
        """Return whether the entry has the dtype, shape and size of this tensor."""
        like = entry and (entry.shape, entry.dtype, entry.size)
        return like == (self._shape, self._dtype, self.size)


def _digest(contents: list[Array], done: Callable[[int], object]) -> list[bytes]:
    """Return the digest of each content. Once hashed, a content is removed and `done` is called with its number."""

    def let_go(at: int) -> None:
        contents[at] = np.empty(0, np.uint8)
        done(at)

    sizes = [len(content) for content in contents]
    return digests.of_tensors(sizes, lambda at, start, stop: contents[at][start:stop], done=let_go)


def _key(name: object) -> bytes:
    """Return a tensor's name as bytes, the form in which the index sorts names. Raises ParameterError."""
    key = name.encode(errors="replace") if isinstance(name, str) else b""
    # An empty key is the key of the header, a key that begins with NUL is the key of a slice, and UTF-8 has no lone
    # surrogates.
    if not key or key[0] == 0 or key.decode() != name:
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
    """Plan a checkpoint of tensors with these sizes.

    `shards` describes the last checkpoint: for each shard its bytes when it was written, and the names of its tensors.

    1. Link each shard that has enough unchanged bytes, if at least half of its bytes are still in use.
    2. If that makes more than LINKED shards, link only the LINKED / 2 shards with the most unchanged bytes.
    3. Move the other unchanged tensors to a shard of their own, if they are large enough together.
    4. Write all remaining tensors to another shard.
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
    """Lay out tensors of these sizes in a shard. Large tensors begin at a page, small tensors at multiples of 64."""
    offsets = []
    end = 0
    for size in sizes:
        if size:  # an empty tensor is not aligned, because its place could then be behind the end of the file
            alignment = _PAGE if size >= _PAGE else ALIGNMENT
            end = -(-end // alignment) * alignment
        offsets.append(end)
        end += size
    return Layout(tuple(offsets), end, tuple(portions(sizes)))


def _is_worth_a_file(size: int, total: int) -> bool:
    return size > 0 and (size >= _WORTH or size >= total * _SHARE)
