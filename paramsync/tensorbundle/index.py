"""Reads and writes the encodings of a TensorBundle: the index of tensors, and tensors of strings.

The index has place, dtype, shape and checksum of each tensor. Reading trusts nothing: checksums, order, bounds, shapes
and sizes are checked before the data is mapped.

A partitioned variable has an entry with the shape of the whole variable and the extents of its parts. Each part has
another entry. Its key encodes the variable's name and the part's extents, so that keys sort like names and extents:

    00 | name, 00 as 00 FF and FF as FF 00 | 00 01 | rank | for each dimension: start, length

The rank is stored as the number of its bytes, in one byte, followed by these bytes. The number of leading one bits of a
start or length is the number of its bytes.

A tensor of strings is stored as the lengths as varints, the masked crc32c of the lengths, and the bytes. This checksum
and the tensor's checksum cover each length as a number of 4 bytes (8 bytes for a large length), not in its stored form.
Variants are stored in nearly the same way, and are not decoded here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
from crc32c import crc32c
from google.protobuf.message import DecodeError

from paramsync import dtypes
from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError, ParameterError
from paramsync.host import files
from paramsync.tensorbundle import sstable
from paramsync.tensorbundle.sstable import mask, varint
from paramsync.v1 import bundle_pb2

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The key of the graph of saved objects that `tf.train.Checkpoint` writes."""

_PRODUCER = 1
_LIMIT = 64 << 20  # the most bytes of an index file
_TENSORS = 1 << 18  # the most tensors, a hundred times as many as large models have: each costs memory and microseconds
_NAMES = sstable.KEYS // 2  # the most bytes of all names in a new index: some names are in the table twice
_SHARDS = 1 << 12  # the most shards: a reader may have to open a file for each
_ENTRY_LIMIT = 1 << 20  # the most bytes of an entry, enough for thousands of slices
_RANK_LIMIT = 64  # numpy's limit
_INT64 = 1 << 63
_CHECKSUM = 4  # bytes
_STRINGS = 1 << 24  # the most strings: each takes tens of bytes of memory, but perhaps one byte of a sparse file

Extent = tuple[int, int]
"""The start and the length of a part in one dimension; a length of -1 means the whole dimension."""

WHOLE: Extent = (0, -1)


@dataclass(frozen=True, slots=True)
class Entry:
    """Place, dtype, shape and masked checksum of a tensor.

    A partitioned variable has several `parts`; its size is the sum of their sizes, and it has no place and no checksum.
    """

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int
    parts: tuple[Part, ...] = ()

    @property
    def pieces(self) -> tuple[Entry, ...]:
        """The entries that have a place and a checksum: the entries of the parts, or this entry."""
        return tuple(part.entry for part in self.parts) or (self,)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a partitioned variable, and where in the variable it begins."""

    start: tuple[int, ...]
    entry: Entry


@dataclass(frozen=True, slots=True)
class Index:
    """The entries by name, and the number of data shards."""

    shards: int
    entries: Mapping[str, Entry]


def index_file(prefix: Path) -> Path:
    """Return the path of the index of the checkpoint with this prefix."""
    return prefix.with_name(f"{prefix.name}.index")


def data_file(prefix: Path, shard: int, shards: int) -> Path:
    """Return the path of a data shard of the checkpoint with this prefix."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")


def read(path: Path) -> Index:
    """Read the index in a file. Raises as `content` does, and CorruptCheckpointError for any fault of the index."""
    return decode(content(path), path=path)


def content(path: Path, *, folder: int | None = None) -> bytes:
    """Return the bytes of an index file, for `decode`. `folder` is as in `files.regular`.

    Raises CorruptCheckpointError if the file cannot be an index, UnreadableError if it cannot be read now.
    """
    with files.reading(path, "an index file"):
        return files.content(path, limit=_LIMIT, folder=folder)


def decode(content: bytes, *, path: Path) -> Index:
    """Return the index in these bytes, which were read from `path`. Raises as `read` does."""
    return _Reader(path).read(sstable.read(content, path=path))


def encode(index: Index) -> bytes:
    """Return the bytes of an index file.

    Raises ParameterError for an index that is too large for `decode`, ValueError for partitioned variables.
    """
    version = bundle_pb2.BundleHeader.VersionDef(producer=_PRODUCER)
    header = bundle_pb2.BundleHeader(num_shards=index.shards, version=version)
    records = [(b"", header.SerializeToString())]
    for name, entry in sorted(index.entries.items(), key=lambda item: item[0].encode()):
        if entry.parts:
            raise ValueError(f"{files.shown(name)}: expected a tensor in one piece, found {len(entry.parts)} parts")
        records.append((name.encode(), _encoded(entry)))
    encoded = sstable.write(records)
    for expected, found, limit in (
        (f"at most {_TENSORS} tensors", len(index.entries), _TENSORS),
        (f"names of at most {_NAMES} bytes together", sum(len(key) for key, _ in records), _NAMES),
        (f"an index of at most {_LIMIT} bytes", len(encoded), _LIMIT),
    ):
        if found > limit:
            raise ParameterError("a checkpoint", expected=expected, found=found)
    return encoded


def digest(entries: Mapping[str, Entry]) -> str:
    """Return a digest of the names, checksums, dtypes and shapes of all tensors, but not of their places."""
    lines = [
        f"{name} {piece.crc32c:08x} {piece.dtype} {list(piece.shape)}\n"
        for name, entry in sorted(entries.items(), key=lambda item: item[0].encode())
        for piece in entry.pieces
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def _encoded(entry: Entry) -> bytes:
    """Return the bytes of a BundleEntry. To build and serialize a message would take several times as long."""
    encoded = b"\x08" + varint(entry.dtype) + _shape(entry.shape)
    for tag, value in ((b"\x18", entry.shard), (b"\x20", entry.offset), (b"\x28", entry.size)):
        if value:
            encoded += tag + varint(value)
    return encoded + b"\x35" + entry.crc32c.to_bytes(4, "little") if entry.crc32c else encoded


@lru_cache(1024)
def _shape(shape: tuple[int, ...]) -> bytes:
    dims = [b"\x08" + varint(size) if size else b"" for size in shape]
    encoded = b"".join(b"\x12" + varint(len(dim)) + dim for dim in dims)
    return b"\x12" + varint(len(encoded)) + encoded


def part_key(name: str, extents: Sequence[Extent]) -> bytes:
    """Return the key of a part of a partitioned variable."""
    escaped = name.encode().replace(b"\0", b"\0\xff")  # FF need not be escaped, because UTF-8 has no FF
    rank = len(extents)
    counted = bytes([1, rank]) if rank else b"\0"
    return b"\0" + escaped + b"\0\1" + counted + b"".join(_signed(bound) for extent in extents for bound in extent)


def _signed(value: int) -> bytes:
    if value < 0:
        return b"\x7f"  # the encoding of -1: no other number is negative
    size = value.bit_length() // 7 + 1
    return ((1 << size) - 1 << 7 * size | value).to_bytes(size, "big")


def parts_problem(shape: Sequence[int], parts: Sequence[Sequence[Extent]]) -> str | None:
    """Return why these parts do not cover a shape; None if they do. Partitioners cut a shape along a grid."""
    cuts: list[set[Extent]] = [set() for _ in shape]
    for part in parts:
        if len(part) != len(shape):
            return f"{len(part)} extents for {len(shape)} dimensions"
        for (start, length), size, cut in zip(part, shape, cuts, strict=True):
            if (start, length) != WHOLE and not 0 <= start < start + length <= size:
                return f"extent {start}, {length} in a dimension of {size}"
            cut.add((start, size if length == -1 else length))
    for size, cut in zip(shape, cuts, strict=True):
        end = 0
        for start, length in sorted(cut):
            if start != end:
                return f"parts that meet neither at {start} nor at {end}"
            end += length
        if end != size:
            return f"parts of {end} of {size}"
    expected = math.prod(len(cut) for cut in cuts)
    if len(parts) != expected or len({tuple(part) for part in parts}) != expected:
        return f"{len(parts)} of {expected} different parts"
    return None


def assemble(
    shape: tuple[int, ...], dtype: np.dtype[np.generic], parts: Iterable[tuple[Sequence[int], Array]]
) -> Array:
    """Join parts to an array of this shape. Each part is given with its start."""
    whole = np.empty(shape, dtype)
    for starts, part in parts:
        whole[tuple(slice(start, start + size) for start, size in zip(starts, part.shape, strict=True))] = part
    return whole


class _Reader:
    """Reads the entries of one index, and checks everything that can be checked without the data."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shards = 0
        self._parts: dict[bytes, Entry] = {}  # parts by key, until their variable is read

    def read(self, records: Iterator[tuple[bytes, bytes]]) -> Index:
        self._shards = self._read_header(*next(records, (None, b"")))
        listed = list(islice(records, _TENSORS + 1))
        if len(listed) > _TENSORS:
            raise self._fault(f"at most {_TENSORS} tensors", "more")
        entries = {}
        for key, value in listed:
            message = self._message(key, value)
            if key[0] == 0:
                self._parts[key] = self._checked(key, message)
                continue
            try:
                name = key.decode()
            except UnicodeDecodeError as error:
                raise self._fault("a name in UTF-8", files.shown(key)) from error
            entries[name] = self._whole(name, message) if message.slices else self._checked(name, message)
        if self._parts:
            raise self._fault("the variable that has the part", files.shown(next(iter(self._parts))))
        self._check_places(entries)
        return Index(self._shards, entries)

    def _read_header(self, key: bytes | None, value: bytes) -> int:
        """Return the number of shards, from the first record of the index."""
        if key != b"":
            raise self._fault("a header", "nothing" if key is None else f"key {files.shown(key)}")
        try:
            header = bundle_pb2.BundleHeader.FromString(value)
        except DecodeError as error:
            raise self._fault("a header", "a malformed one") from error
        if header.endianness != bundle_pb2.BundleHeader.LITTLE:
            raise self._fault("little-endian tensors", "big-endian ones")
        if header.version.min_consumer > _PRODUCER:
            found = f"one for readers of version {header.version.min_consumer} on"
            raise self._fault(f"a checkpoint of version {_PRODUCER}", found)
        if not 1 <= header.num_shards <= _SHARDS:
            raise self._fault(f"1 to {_SHARDS} shards", header.num_shards)
        return header.num_shards

    def _message(self, key: bytes, value: bytes) -> bundle_pb2.BundleEntry:
        if len(value) > _ENTRY_LIMIT:
            raise self._fault(f"an entry of at most {_ENTRY_LIMIT} bytes", f"{len(value)} in {files.shown(key)}")
        try:
            return bundle_pb2.BundleEntry.FromString(value)
        except DecodeError as error:
            raise self._fault("an entry", f"a malformed one, {files.shown(key)}") from error

    def _checked(self, key: str | bytes, message: bundle_pb2.BundleEntry) -> Entry:
        """Return the checked entry of a tensor or a part."""
        if message.slices:
            raise self._fault(f"{files.shown(key)} to be a tensor in one piece", f"{len(message.slices)} parts")
        place = message.shard_id, message.offset, message.size
        return self._sound(key, Entry(message.dtype, self._shape(key, message), *place, message.crc32c))

    def _sound(self, key: str | bytes, entry: Entry) -> Entry:
        if wrong := _problem(entry, self._shards):
            raise self._fault(f"{files.shown(key)} with {wrong[0]}", wrong[1])
        return entry

    def _shape(self, key: str | bytes, message: bundle_pb2.BundleEntry) -> tuple[int, ...]:
        dims = message.shape.dim
        if len(dims) > _RANK_LIMIT or message.shape.unknown_rank:
            found = "an unknown rank" if message.shape.unknown_rank else f"{len(dims)} sizes"
            raise self._fault(f"{files.shown(key)} with a shape of at most {_RANK_LIMIT} known sizes", found)
        return tuple([dim.size for dim in dims])

    def _whole(self, name: str, message: bundle_pb2.BundleEntry) -> Entry:
        """Return the checked entry of a partitioned variable, with its parts."""
        shape = self._shape(name, message)
        extents = [
            [(extent.start, extent.length if extent.HasField("length") else -1) for extent in part.extent]
            for part in message.slices
        ]
        if wrong := parts_problem(shape, extents):
            raise self._fault(f"parts of {files.shown(name)} that make up {list(shape)}", wrong)
        parts = tuple(self._part(name, message.dtype, shape, part) for part in extents)
        size = sum(part.entry.size for part in parts)
        return self._sound(name, Entry(message.dtype, shape, parts[0].entry.shard, 0, size, 0, parts))

    def _part(self, name: str, dtype: int, shape: tuple[int, ...], extents: list[Extent]) -> Part:
        entry = self._parts.pop(part_key(name, extents), None)
        if entry is None:
            raise self._fault(f"an entry for the part {extents} of {files.shown(name)}", "none")
        sizes = tuple(size if extent == WHOLE else extent[1] for extent, size in zip(extents, shape, strict=True))
        if (entry.dtype, entry.shape) != (dtype, sizes):
            expected = f"a part of {files.shown(name)} that is {dtypes.name(dtype)} {list(sizes)}"
            raise self._fault(expected, f"{dtypes.name(entry.dtype)} {list(entry.shape)}")
        return Part(tuple(start for start, _ in extents), entry)

    def _check_places(self, entries: Mapping[str, Entry]) -> None:
        """Refuse overlapping tensors, with which a small file could fill much memory. Names may share a tensor."""
        places = {(entry.shard, entry.offset, entry.size) for entry in entries.values() if not entry.parts}
        parts = [part.entry for entry in entries.values() for part in entry.parts]
        end = (0, 0)
        for shard, offset, size in sorted([*places, *((part.shard, part.offset, part.size) for part in parts)]):
            if size:
                if (shard, offset) < end:
                    raise self._fault(f"tensors that do not overlap at {end[1]} of shard {shard}", f"one at {offset}")
                end = (shard, offset + size)

    def _fault(self, expected: object, found: object) -> CorruptCheckpointError:
        return CorruptCheckpointError(self._path, expected=expected, found=found)


def _problem(entry: Entry, shards: int) -> tuple[str, object] | None:
    """Return the expected and the actual value of a bad entry; None for a sound entry."""
    if min(entry.shape, default=0) < 0:
        return "a shape of known sizes", entry.shape
    if not 0 <= entry.shard < shards:
        return f"a shard below {shards}", entry.shard
    if entry.offset < 0 or entry.size < 0 or entry.offset + entry.size >= _INT64:
        return "an offset and a size of 63 bits", (entry.offset, entry.size)
    dtype = dtypes.to_numpy(entry.dtype)
    if dtype is None and entry.dtype != dtypes.VARIANT:
        return None  # the index may list the tensor, but its values cannot be read
    item = dtype.itemsize if dtype else 1
    count = math.prod(entry.shape)
    # numpy refuses a shape if the product of its sizes other than 0 overflows
    if (count or math.prod([size or 1 for size in entry.shape])) * item >= _INT64:
        return "a shape that can be addressed", entry.shape
    if entry.dtype in (dtypes.STRING, dtypes.VARIANT):
        return _strings_problem(count, entry.size, variants=entry.dtype == dtypes.VARIANT)
    if entry.size != count * item:
        expected = f"{count * item} bytes for {dtypes.name(entry.dtype)} {list(entry.shape)}"
        return expected, f"{entry.size} bytes"
    return None


def encode_strings(array: Array, name: str) -> tuple[bytes, int]:
    """Return the bytes to store, and their unmasked checksum. Raises ParameterError for strings that readers refuse."""
    if array.size > _STRINGS:
        raise ParameterError(files.shown(name), expected=f"at most {_STRINGS} strings", found=array.size)
    values = [_text(value, name) for value in array.reshape(-1).tolist()]
    lengths = [len(value) for value in values]
    checksum = _checksum_of_lengths(lengths)
    stored = _encode_checksum(checksum)
    body = b"".join(values)
    return b"".join(map(varint, lengths)) + stored + body, crc32c(body, crc32c(stored, checksum))


def decode_strings(content: memoryview, shape: tuple[int, ...], *, path: Path, name: str) -> tuple[Array, int]:
    """Return the strings, and the unmasked checksum of all stored bytes.

    Raises CorruptCheckpointError if the lengths do not fit the bytes that follow.
    """
    lengths, position = _read_lengths(content, math.prod(shape), path=path, name=name)
    checksum = _checksum_of_lengths(lengths)
    start = position + _CHECKSUM
    if (stored := bytes(content[position:start])) != _encode_checksum(checksum):
        expected = f"lengths of {files.shown(name)} that fit their checksum"
        raise CorruptCheckpointError(path, expected=expected, found="others")
    if start + sum(lengths) != len(content):
        expected = f"{sum(lengths)} bytes of strings in {files.shown(name)}"
        raise CorruptCheckpointError(path, expected=expected, found=len(content) - start)
    array = np.empty(len(lengths), object)
    checksum = crc32c(content[start:], crc32c(stored, checksum))
    for at, length in enumerate(lengths):
        array[at] = bytes(content[start : start + length])
        start += length
    return array.reshape(shape), checksum


def checksum_of_variants(content: memoryview, shape: tuple[int, ...], *, path: Path, name: str) -> int:
    """Return the unmasked checksum of serialized variants, such as iterators over data and lists of tensors.

    A variant is stored as its length, its bytes, and the masked checksum of everything before it. Raises as
    `decode_strings` does.
    """
    position = checksum = 0
    for _ in range(math.prod(shape)):
        (length,), start = _read_lengths(content[position:], 1, path=path, name=name)
        start += position
        position = start + length + _CHECKSUM
        checksum = crc32c(content[start : start + length], crc32c(length.to_bytes(8, "little"), checksum))
        if (stored := bytes(content[start + length : position])) != _encode_checksum(checksum):
            expected = f"variants of {files.shown(name)} that fit their checksums"
            raise CorruptCheckpointError(path, expected=expected, found="others")
        checksum = crc32c(stored, checksum)
    if position != len(content):
        expected = f"{position} bytes of variants in {files.shown(name)}"
        raise CorruptCheckpointError(path, expected=expected, found=len(content))
    return checksum


def _strings_problem(count: int, size: int, *, variants: bool = False) -> tuple[str, object] | None:
    """Return the expected and actual number if `size` bytes cannot be `count` strings or variants, otherwise None."""
    if count > _STRINGS:
        return f"at most {_STRINGS} strings", count
    least = count * (1 + _CHECKSUM) if variants else count + _CHECKSUM
    return None if size >= least else (f"at least {least} bytes for {count} strings", size)


def _encode_checksum(checksum: int) -> bytes:
    return mask(checksum).to_bytes(_CHECKSUM, "little")


def _text(value: object, name: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ParameterError(files.shown(name), expected="bytes in an array of objects", found=type(value).__name__)
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        found = files.shown(value)
        raise ParameterError(files.shown(name), expected="text that UTF-8 can hold", found=found) from error


def _read_lengths(content: memoryview, count: int, *, path: Path, name: str) -> tuple[list[int], int]:
    try:
        return sstable.read_varints(content, 0, count)
    except (IndexError, ValueError) as error:
        expected = f"{count} lengths of {files.shown(name)}"
        raise CorruptCheckpointError(path, expected=expected, found="malformed ones") from error


def _checksum_of_lengths(lengths: list[int]) -> int:
    checksum = 0
    for length in lengths:
        checksum = crc32c(length.to_bytes(4 if length < 1 << 32 else 8, "little"), checksum)
    return checksum
