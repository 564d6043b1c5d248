"""Writes checkpoints that TensorFlow reads: tensors aligned, so that they can be used where they lie."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from paramsync.checkpoint import data_writer, placement
from paramsync.checkpoint import seal as seals
from paramsync.checkpoint.file_pool import DataFile, Spares
from paramsync.checkpoint.seal import Trace
from paramsync.checkpoint.tensor_source import Source, Tensor, key_of
from paramsync.dtypes import Array
from paramsync.errors import NotFiniteError
from paramsync.host import files
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Entry, Index, data_file, index_file

_NO_LINK = {errno.EPERM, errno.EMLINK, errno.ENOENT, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS}


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
    """A data file of a checkpoint: how many bytes its tensors had when it was written, and what tells it since."""

    path: Path
    file: DataFile
    bytes: int
    trace: Trace

    def is_sound(self) -> bool:
        """Whether it is there, and nobody has cut it or written into it by a system call."""
        with suppress(OSError):
            return Trace.of(self.path.lstat()) == self.trace
        return False


class _NoLinkError(Exception):
    """A data file of the checkpoint before cannot be linked. Nothing is copied yet."""


class ShardWriter:
    """Writes one checkpoint after another, and takes over from the one before what did not change.

    One thread owns it.
    """

    def __init__(self, spares: Spares, *, durable: bool = False) -> None:
        self._spares = spares
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
        sources = {name: Source(name, tensors[name]) for name in sorted(tensors, key=key_of)}
        sizes = {name: source.size for name, source in sources.items()}
        sound = [shard.is_sound() for shard in self._last.shards]
        if finite and not self._last.finite:  # what nobody has looked at is not taken over
            sound = [False] * len(sound)
        same = self._same(sources, frozenset(unchanged), sound)
        decided = placement.decide(sizes, same, self._candidates(sound))
        try:
            return self._write(prefix, sources, same, decided, finite=finite, copied=copied)
        except _NoLinkError:
            unlinked = placement.decide(sizes, same, ())
            return self._write(prefix, sources, same, unlinked, finite=finite, copied=copied)

    def remember(self, written: Written) -> None:
        """This is now the checkpoint before."""
        self._last = written

    def _write(
        self,
        prefix: Path,
        sources: Mapping[str, Source],
        same: Collection[str],
        decided: placement.Plan,
        *,
        finite: bool,
        copied: Callable[[str], object] | None,
    ) -> Written:
        fresh = [names for names in (decided.moved, decided.changed) if names]
        if not sources:
            fresh = [()]  # a checkpoint has at least one shard
        count = len(decided.linked) + len(fresh)
        paths = [data_file(prefix, at, count) for at in range(count)]
        shards: list[Shard] = []
        entries: dict[str, Entry] = {}

        def let_go(name: str) -> None:
            if name in same:  # to be held on to, perhaps, so that it is known to be unchanged the next time
                return
            sources[name].let_go()
            if copied is not None:
                copied(name)

        try:
            for at, names in decided.linked.items():
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
                    self._spares.retire(path)
            raise
        bytes_written = sum(entries[name].size for names in fresh for name in names)
        total = sum(entry.size for entry in entries.values())
        seal = seals.seal([one.trace for one in shards], prefix.parent) if self._spares.in_memory else ""
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
        self._spares.use(shard.file)
        return replace(shard, path=path)

    def _fill(
        self,
        path: Path,
        shard: int,
        names: Sequence[str],
        sources: Mapping[str, Source],
        entries: dict[str, Entry],
        *,
        finite: bool,
        copied: Callable[[str], object],
    ) -> Shard:
        """Write a data file; adds the entries of what is in it."""
        written = [sources[name] for name in names]
        layout = placement.arrange(tuple([one.size for one in written]))
        looked_at = [one.numbers if finite else None for one in written]
        with self._spares.writing(path, layout.end) as file:
            contents = [one.content() for one in written]
            found = data_writer.write(file, layout, contents, looked_at, lambda at: copied(names[at]))
            if wrong := [name for name, one in zip(names, found, strict=True) if not one.sound]:
                raise NotFiniteError(wrong)
        for name, offset, one in zip(names, layout.offsets, found, strict=True):
            entries[name] = sources[name].entry(shard, offset, one.checksum)
        return Shard(path, file, sum(one.size for one in written), file.trace)

    def _same(self, sources: Mapping[str, Source], told: Collection[str], sound: Sequence[bool]) -> set[str]:
        """The names whose values are those of the last checkpoint, of whose data files some are sound."""
        last = self._last.entries
        known = [name for name, one in sources.items() if one.is_like(last.get(name)) and sound[last[name].shard]]
        found = {name for name in known if name in told}
        others = [name for name in known if name not in told and self._is_mapped(name)]
        pairs = [(sources[name].content(), self._content(self._last.entries[name])) for name in others]
        return found.union(name for name, same in zip(others, data_writer.same(pairs), strict=True) if same)

    def _candidates(self, sound: Sequence[bool]) -> list[placement.Shard]:
        """The shards of the last checkpoint; one that a stranger removed or changed has nothing to offer."""
        names: list[list[str]] = [[] for _ in self._last.shards]
        for name, entry in self._last.entries.items():
            names[entry.shard].append(name)
        return [
            placement.Shard(shard.bytes, tuple(those) if is_sound else ())
            for shard, those, is_sound in zip(self._last.shards, names, sound, strict=True)
        ]

    def _is_mapped(self, name: str) -> bool:
        entry = self._last.entries[name]
        return entry.offset + entry.size <= len(self._last.shards[entry.shard].file.content)

    def _content(self, entry: Entry) -> Array:
        return self._last.shards[entry.shard].file.content[entry.offset : entry.offset + entry.size]


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
