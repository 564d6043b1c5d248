"""The index of a TensorBundle checkpoint: where and what each tensor is. Knows nothing of the data itself.

Reading believes nothing: checksums, order, bounds, shapes and sizes are checked before anybody maps anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from paramsync import dtypes, files, strings, table
from paramsync.errors import CorruptCheckpointError
from paramsync.v1 import bundle_pb2

_PRODUCER = 1
_LIMIT = 256 << 20  # bytes: millions of tensors
_RANK_LIMIT = 64  # numpy's
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class Entry:
    """Where and what a tensor is. The checksum is masked, as it is stored."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Index:
    """The entries by name, and how many data shards they lie in."""

    shards: int
    entries: Mapping[str, Entry]


def index_file(prefix: Path) -> Path:
    """The index of the checkpoint with this prefix."""
    return prefix.with_name(f"{prefix.name}.index")


def data_file(prefix: Path, shard: int, shards: int) -> Path:
    """One of the data shards of the checkpoint with this prefix."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")


def read(path: Path) -> Index:
    """The index in a file. Raises CorruptCheckpointError where it is not one, or not one to rely on."""
    try:
        records = table.read(files.content(path, limit=_LIMIT), path=path)
    except OSError as error:
        raise CorruptCheckpointError(path, expected="an index file", found=error.strerror) from error
    shards = _read_header(path, next(records, None))
    return Index(shards, dict(_read_entry(path, shards, name, value) for name, value in records))


def encode(index: Index) -> bytes:
    """The bytes of an index file."""
    version = bundle_pb2.BundleHeader.VersionDef(producer=_PRODUCER)
    header = bundle_pb2.BundleHeader(num_shards=index.shards, version=version)
    records = [(b"", header.SerializeToString())]
    for name, entry in sorted(index.entries.items(), key=lambda item: item[0].encode()):
        shape = bundle_pb2.TensorShape(dim=[bundle_pb2.TensorShape.Dim(size=size) for size in entry.shape])
        message = bundle_pb2.BundleEntry(
            dtype=entry.dtype,
            shape=shape,
            shard_id=entry.shard,
            offset=entry.offset,
            size=entry.size,
            crc32c=entry.crc32c,
        )
        records.append((name.encode(), message.SerializeToString()))
    return table.write(records)


def _read_header(path: Path, record: tuple[bytes, bytes] | None) -> int:
    """The number of shards."""
    if record is None or record[0]:
        raise CorruptCheckpointError(
            path, expected="a header", found=f"key {files.shown(record[0])}" if record else "nothing"
        )
    try:
        header = bundle_pb2.BundleHeader.FromString(record[1])
    except DecodeError as error:
        raise CorruptCheckpointError(path, expected="a header", found="a malformed one") from error
    if header.endianness != bundle_pb2.BundleHeader.LITTLE:
        raise CorruptCheckpointError(path, expected="little-endian tensors", found="big-endian ones")
    if header.version.min_consumer > _PRODUCER:
        found = f"one for readers of version {header.version.min_consumer} on"
        raise CorruptCheckpointError(path, expected=f"a checkpoint of version {_PRODUCER}", found=found)
    if header.num_shards < 1:
        raise CorruptCheckpointError(path, expected="at least one shard", found=header.num_shards)
    return header.num_shards


def _read_entry(path: Path, shards: int, key: bytes, value: bytes) -> tuple[str, Entry]:
    """Check what can be checked without the data."""
    if key[0] == 0:  # begins the key of a slice, which is encoded so as to sort, not to be read
        raise CorruptCheckpointError(path, expected="whole tensors", found="slices of partitioned variables")
    try:
        name = key.decode()
        message = bundle_pb2.BundleEntry.FromString(value)
    except (UnicodeDecodeError, DecodeError) as error:
        raise CorruptCheckpointError(path, expected="an entry", found=f"a malformed one, {files.shown(key)}") from error
    shape = tuple(dim.size for dim in message.shape.dim)
    entry = Entry(message.dtype, shape, message.shard_id, message.offset, message.size, message.crc32c)
    if problem := _problem(entry, shards, unknown_rank=message.shape.unknown_rank, sliced=bool(message.slices)):
        raise CorruptCheckpointError(path, expected=f"{files.shown(name)} with {problem[0]}", found=problem[1])
    return name, entry


def _problem(entry: Entry, shards: int, *, unknown_rank: bool, sliced: bool) -> tuple[str, object] | None:
    """What an entry should have and what it has instead."""
    if sliced:
        return "all its values in one piece", "slices of a partitioned variable"
    if unknown_rank or len(entry.shape) > _RANK_LIMIT or any(size < 0 for size in entry.shape):
        return f"a shape of at most {_RANK_LIMIT} known sizes", "an unknown rank" if unknown_rank else entry.shape
    if not 0 <= entry.shard < shards:
        return f"a shard below {shards}", entry.shard
    if entry.offset < 0 or entry.size < 0 or entry.offset + entry.size >= _INT64:
        return "an offset and a size of 63 bits", (entry.offset, entry.size)
    return _size_problem(entry)


def _size_problem(entry: Entry) -> tuple[str, object] | None:
    dtype = dtypes.to_numpy(entry.dtype)
    if dtype is None:  # listed, bounded, and refused when somebody asks for its values
        return None
    count = extent = 1
    for size in entry.shape:
        count *= size
        extent *= size or 1  # numpy refuses a shape whose other sizes overflow even when one of them is 0
    if extent * dtype.itemsize >= _INT64:
        return "a shape that can be addressed", entry.shape
    if entry.dtype == dtypes.STRING:
        least = strings.least(count)
        return None if entry.size >= least else (f"at least {least} bytes for {count} strings", entry.size)
    size = count * dtype.itemsize
    found = f"{entry.size} bytes"
    return None if entry.size == size else (f"{size} bytes for {dtypes.name(entry.dtype)} {list(entry.shape)}", found)
