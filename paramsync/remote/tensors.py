"""The tensors of a version as bytes: how they lie one after another in an object, and as a delta between two versions.

A packed object has the tensors in the order of their names, each aligned. A delta object has, for each tensor in the
same order, the number of its blocks (0 for a tensor that did not change), then the size and the bytes of each block.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from crc32c import crc32c

from paramsync import dtypes
from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.tensor_bytes import THREADS, each
from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError
from paramsync.remote import delta
from paramsync.remote.delta import Unsigned
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Entry, Index
from paramsync.tensorbundle.sstable import mask

_COUNT = struct.Struct("<I")
_LARGEST = 8  # bytes of an element of a delta

Contents = Mapping[str, Array]
"""The bytes of each tensor as they are stored, by name, in the order of the names."""


def contents(bundle: Bundle) -> dict[str, Array]:
    """The bytes of a version's tensors, in the memory of its files but for strings and partitioned variables."""
    found: dict[str, Array] = {}
    for name in sorted(bundle.entries, key=str.encode):
        array = bundle.array(name)
        if bundle.entries[name].dtype == dtypes.STRING:
            found[name] = np.frombuffer(index.encode_strings(array, name)[0], np.uint8)
        else:
            found[name] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return found


def pack(entries: Mapping[str, Entry], found: Contents) -> Index:
    """The index of a packed object with these contents."""
    end = 0
    packed = {}
    for name, content in found.items():
        entry = entries[name]
        checksum = mask(crc32c(content.data)) if entry.parts else entry.crc32c
        offset = -(-end // ALIGNMENT) * ALIGNMENT if len(content) else end
        packed[name] = replace(entry, shard=0, offset=offset, size=len(content), crc32c=checksum, parts=())
        end = offset + len(content)
    return Index(1, packed)


def stream(packed: Index, found: Contents) -> Iterator[bytes]:
    """The bytes of a packed object, a few megabytes at a time."""
    end = 0
    for name, content in found.items():
        yield bytes(packed.entries[name].offset - end)
        for start in range(0, len(content), delta.BLOCK):
            yield content[start : start + delta.BLOCK].tobytes()
        end = packed.entries[name].offset + len(content)


def size_of(packed: Index) -> int:
    """The size of a packed object."""
    return max((entry.offset + entry.size for entry in packed.entries.values()), default=0)


def unpack(packed: Index, content: Array) -> dict[str, Array]:
    """The bytes of each tensor in a packed object."""
    return {name: content[entry.offset : entry.offset + entry.size] for name, entry in packed.entries.items()}


def tensor(name: str, entry: Entry, content: Array) -> Array:
    """The values of a tensor. Raises CorruptCheckpointError for malformed strings, or a dtype that numpy lacks."""
    if entry.dtype == dtypes.STRING:
        return index.decode_strings(content.data, entry.shape, path=PurePosixPath("delta"), name=name)[0]  # type: ignore[arg-type]
    dtype = dtypes.to_numpy(entry.dtype)
    if dtype is None:
        raise CorruptCheckpointError(PurePosixPath(name), expected="a dtype of numpy", found=entry.dtype)  # type: ignore[arg-type]
    return content.view(dtype).reshape(entry.shape)


def alike(first: Mapping[str, Entry], second: Mapping[str, Entry]) -> bool:
    """Whether two versions have the same tensors by name, dtype, shape and size: a delta can lead between them."""
    return first.keys() == second.keys() and all(
        (entry.dtype, entry.shape, entry.size) == (second[name].dtype, second[name].shape, second[name].size)
        for name, entry in first.items()
    )


def difference(entries: Mapping[str, Entry], old: Contents, new: Contents) -> Iterator[bytes]:
    """The bytes of the delta object that leads from `old` to `new`, block by block."""
    for name, content in new.items():
        blocks = [] if old[name] is content else _encode(_width(entries[name]), old[name], content)
        if all(block[0] == delta.SAME for block in blocks):
            blocks = []
        yield _COUNT.pack(len(blocks))
        for block in blocks:
            yield _COUNT.pack(len(block)) + block


def _encode(width: np.dtype[Any], old: Array, new: Array) -> list[bytes]:
    """The deltas of the blocks of a tensor."""
    before, after = old.view(width), new.view(width)
    step = delta.BLOCK // width.itemsize
    blocks = [b""] * -(-len(after) // step)

    def encode(at: int) -> None:
        part = slice(at * step, (at + 1) * step)
        blocks[at] = delta.encode(before[part], after[part])

    each(encode, range(len(blocks)), threads=min(THREADS, len(blocks)))
    return blocks


def advance(entries: Mapping[str, Entry], old: Contents, content: bytes, own: set[str]) -> dict[str, Array]:
    """The contents that a delta object makes of `old`, copying the changed tensors that are not `own` copies already.

    Adds the names of the copies to `own`. Raises ValueError for a delta that does not fit.
    """
    view = memoryview(content)
    new: dict[str, Array] = {}
    blocks: list[tuple[memoryview, Unsigned | None, Unsigned]] = []  # delta, elements to copy first, their place

    def take() -> int:
        nonlocal view
        if len(view) < _COUNT.size:
            raise ValueError("expected more bytes of a delta")
        number: int = _COUNT.unpack_from(view)[0]
        view = view[_COUNT.size :]
        return number

    def apply(block: tuple[memoryview, Unsigned | None, Unsigned]) -> None:
        packed, before, after = block
        if before is not None:
            np.copyto(after, before)
        delta.apply(packed, after)

    for name, known in old.items():
        width = _width(entries[name])
        step = delta.BLOCK // width.itemsize
        size = len(known) // width.itemsize
        if (count := take()) not in (0, -(-size // step)):
            raise ValueError(f"expected {-(-size // step)} blocks of {name!r}, found {count}")
        is_copied = bool(count) and name not in own
        new[name] = np.empty_like(known) if is_copied else known
        for at in range(0, size, step) if count else ():
            length = take()
            before, after = (array.view(width)[at : at + step] for array in (known, new[name]))
            blocks.append((view[:length], before if is_copied else None, after))
            view = view[length:]
        own.update([name] if count else [])
    if len(view):
        raise ValueError(f"expected the end of a delta, found {len(view)} bytes more")
    each(apply, blocks)
    return new


def _width(entry: Entry) -> np.dtype[Any]:
    """The unsigned dtype that a delta compares the elements of a tensor by."""
    dtype = dtypes.to_numpy(entry.dtype)
    size = 1 if dtype is None or entry.dtype == dtypes.STRING else min(dtype.itemsize, _LARGEST)
    return np.dtype(f"u{size}")
