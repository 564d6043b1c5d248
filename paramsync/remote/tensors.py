"""The tensors of a version as the bytes of an object: packed one after another, or as a delta between two versions.

A packed object contains the tensors in the order of their names, each aligned. A delta object contains for each tensor,
in the same order, the number of its blocks (0 for a tensor that did not change), then the size and the bytes of the
delta of each block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from crc32c import crc32c

from paramsync import dtypes
from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.tensor_bytes import PORTION, THREADS, each
from paramsync.dtypes import Array
from paramsync.remote import delta
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Entry, Index
from paramsync.tensorbundle.sstable import mask

_COUNT = struct.Struct("<I")
_SAME = bytes([delta.SAME])  # the first byte of the delta of a block that did not change
_TOGETHER = 8  # blocks that are encoded at once
assert delta.BLOCK == PORTION  # a store writes tensors in portions, and each portion is one block of a delta
_LARGEST = 8  # bytes: a delta compares larger elements in pieces of this size

Contents = Mapping[str, Array]
"""The stored bytes of each tensor, by name, in the order of the names."""

Parts = Iterator[tuple[int, bytes]]
"""A delta object in pieces: how many bytes of tensors a piece covers, and its bytes."""

Blocks = Mapping[str, Sequence[memoryview]]
"""The deltas of all blocks of each changed tensor, by name."""


def contents(bundle: Bundle) -> dict[str, Array]:
    """Return the bytes of a version's tensors. Strings and partitioned variables are copied, all others are not."""
    found: dict[str, Array] = {}
    for name in sorted(bundle.entries, key=str.encode):
        array = bundle.array(name)
        if bundle.entries[name].dtype == dtypes.STRING:
            found[name] = np.frombuffer(index.encode_strings(array, name)[0], np.uint8)
        else:
            found[name] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return found


def pack(entries: Mapping[str, Entry], found: Contents) -> Index:
    """Return the index of a packed object with these contents."""
    end = 0
    packed = {}
    for name, content in found.items():
        entry = entries[name]
        checksum = mask(crc32c(content.data)) if entry.parts else entry.crc32c
        offset = -(-end // ALIGNMENT) * ALIGNMENT if len(content) else end
        packed[name] = replace(entry, shard=0, offset=offset, size=len(content), crc32c=checksum, parts=())
        end = offset + len(content)
    return Index(1, packed)


def stream(packed: Index, found: Contents) -> Iterator[memoryview]:
    """Yield the bytes of a packed object, a few megabytes at a time, without copying the contents."""
    end = 0
    for name, content in found.items():
        yield memoryview(bytes(packed.entries[name].offset - end))
        for start in range(0, len(content), PORTION):
            yield content[start : start + PORTION].data
        end = packed.entries[name].offset + len(content)


def size_of(packed: Index) -> int:
    """Return the size of a packed object."""
    return max((entry.offset + entry.size for entry in packed.entries.values()), default=0)


def check(packed: Index) -> None:
    """Raise ValueError unless a store can contain these tensors at the offsets that `pack` assigns."""
    end = 0
    for name, entry in packed.entries.items():
        if dtypes.to_numpy(entry.dtype) is None:
            raise ValueError(f"expected a dtype of numpy in {name!r}, found {entry.dtype}")
        offset = -(-end // ALIGNMENT) * ALIGNMENT if entry.size else end
        if (entry.shard, entry.offset) != (0, offset) or entry.parts:
            raise ValueError(f"expected {name!r} at {offset}, found it at {entry.offset}")
        end = offset + entry.size


def alike(first: Mapping[str, Entry], second: Mapping[str, Entry]) -> bool:
    """Whether two versions have the same tensors by name, dtype, shape and size, as a delta requires."""
    return first.keys() == second.keys() and all(
        (entry.dtype, entry.shape, entry.size) == (second[name].dtype, second[name].shape, second[name].size)
        for name, entry in first.items()
    )


def difference(entries: Mapping[str, Entry], old: Contents, new: Contents) -> Parts:
    """Return the delta object from `old` to `new`."""

    def encode(name: str, part: slice) -> bytes:
        width = _width(entries[name])
        return delta.encode(old[name][part].view(width), new[name][part].view(width))

    return _parts({name: len(content) for name, content in new.items()}, lambda name: old[name] is new[name], encode)


def total(entries: Mapping[str, Entry], deltas: Sequence[Blocks]) -> Parts:
    """Return one delta object with the effect of applying these deltas in order."""

    def encode(name: str, part: slice) -> bytes:
        changes = [changed[name][part.start // delta.BLOCK] for changed in deltas if name in changed]
        width = _width(entries[name])
        size = min(part.stop, entries[name].size) - part.start
        return delta.add(changes, size // width.itemsize, width)

    sizes = {name: entries[name].size for name in sorted(entries, key=str.encode)}
    return _parts(sizes, lambda name: not any(name in changed for changed in deltas), encode)


def _parts(sizes: Mapping[str, int], same: Callable[[str], bool], encode: Callable[[str, slice], bytes]) -> Parts:
    """Yield the pieces of a delta object for tensors of these sizes, in order. `encode` makes a block's delta."""
    for name, size in sizes.items():
        if same(name):
            yield size, _COUNT.pack(0)
            continue
        parts = [slice(start, start + delta.BLOCK) for start in range(0, size, delta.BLOCK)]
        if len(parts) > _TOGETHER:  # too many blocks to have in memory at once
            yield 0, _COUNT.pack(len(parts))
            for at in range(0, len(parts), _TOGETHER):
                yield _TOGETHER * delta.BLOCK, b"".join(_encode(partial(encode, name), parts[at : at + _TOGETHER]))
            continue
        blocks = _encode(partial(encode, name), parts)
        if all(block[_COUNT.size] == delta.SAME for block in blocks):
            blocks = []
        yield size, b"".join([_COUNT.pack(len(blocks)), *blocks])


def _encode(encode: Callable[[slice], bytes], parts: Sequence[slice]) -> list[bytes]:
    """Return the deltas of these blocks, each preceded by its size."""
    blocks = [b""] * len(parts)

    def work(at: int) -> None:
        block = encode(parts[at])
        blocks[at] = _COUNT.pack(len(block)) + block

    each(work, range(len(parts)), threads=min(THREADS, len(parts)))
    return blocks


def blocks(entries: Mapping[str, Entry], content: memoryview) -> Blocks:
    """Split a delta object into its blocks. Raises ValueError if it does not fit these tensors."""
    found: dict[str, tuple[memoryview, ...]] = {}
    at = 0

    def take() -> int:
        nonlocal at
        if len(content) < at + _COUNT.size:
            raise ValueError("expected more bytes of a delta")
        number: int = _COUNT.unpack_from(content, at)[0]
        at += _COUNT.size
        return number

    for name in sorted(entries, key=str.encode):
        most = -(-entries[name].size // delta.BLOCK)
        if (count := take()) not in (0, most):
            raise ValueError(f"expected {most} blocks of {name!r}, found {count}")
        changed = []
        for _ in range(count):
            length = take()
            changed.append(content[at : at + length])
            at += length
        if any(block[:1] != _SAME for block in changed):
            found[name] = tuple(changed)
    if at != len(content):
        raise ValueError(f"expected a delta of {at} bytes, found {len(content)}")
    return found


def advance(entry: Entry, changed: Sequence[memoryview], start: int, source: Array, target: Array) -> None:
    """Apply the deltas of a tensor's blocks to old bytes in `source`, and write the new bytes into `target`.

    Both may be the same array. Their first byte is byte `start` of the tensor; they begin and end where blocks do.
    Raises ValueError for a delta that does not fit.
    """
    width = _width(entry)
    for at in range(0, len(target), delta.BLOCK):
        before, after = (array[at : at + delta.BLOCK].view(width) for array in (source, target))
        delta.apply(changed[(start + at) // delta.BLOCK], before, after)


def _width(entry: Entry) -> np.dtype[Any]:
    """Return the unsigned dtype with which a delta reads the elements of a tensor."""
    dtype = dtypes.to_numpy(entry.dtype)
    size = 1 if dtype is None or entry.dtype == dtypes.STRING else min(dtype.itemsize, _LARGEST)
    return np.dtype(f"u{size}")
