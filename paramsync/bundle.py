"""TensorFlow's checkpoint files (TensorBundle): names and shapes in an index, bytes in data shards that can be mapped.

What `write` writes TensorFlow reads, and what TensorFlow writes `Bundle` reads. Ours begins every tensor on a multiple
of 64 bytes (4096 for tensors of a page or more), so that it can be used where it lies; TensorFlow's is packed tightly.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np
from crc32c import crc32c
from google.protobuf.message import DecodeError

from paramsync import dtypes, files, strings, table
from paramsync.errors import CorruptCheckpointError, ParameterError
from paramsync.v1 import bundle_pb2

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

_ALIGNMENT = 64
_PAGE = 4096
_PRODUCER = 1
_INDEX_LIMIT = 256 << 20  # bytes: millions of tensors
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


def index_file(prefix: Path) -> Path:
    """The index of the checkpoint with this prefix."""
    return prefix.with_name(f"{prefix.name}.index")


def data_file(prefix: Path, shard: int, shards: int) -> Path:
    """One of the data shards of the checkpoint with this prefix."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")


# Writing --------------------------------------------------------------------------------------------------------------


def write(prefix: Path, tensors: Mapping[str, Array]) -> int:
    """Write a checkpoint with one data shard; returns how many bytes its tensors have, padding not counted.

    Object arrays hold strings, as bytes. Both files are written aside. The data takes its name first, so that an index
    never speaks of data that is not there; where anything fails, neither does. Raises OSError, and ParameterError for
    what TensorFlow cannot store.
    """
    with files.aside(index_file(prefix)) as index, files.aside(data_file(prefix, 0, 1)) as data:
        entries: dict[str, Entry] = {}
        end = 0
        for name in sorted(tensors, key=str.encode):
            entries[name] = entry = _write_tensor(data, end, name, tensors[name])
            end = entry.offset + entry.size
        index.write(_encode(entries))
        index.flush()  # a full disk shows here, before the data has its name
    return sum(entry.size for entry in entries.values())


def _write_tensor(file: BinaryIO, end: int, name: str, array: Array) -> Entry:
    """Write a tensor to the first aligned place at or after `end`; what lies between stays a hole."""
    shown = files.shown(name)
    if not name or name[0] == "\0":  # the keys of the header and of slices
        raise ParameterError("a checkpoint", expected="names that are neither empty nor begin with NUL", found=shown)
    dtype = dtypes.from_numpy(array.dtype)
    if dtype is None:
        raise ParameterError(shown, expected="a dtype of TensorFlow's in little-endian order", found=array.dtype)
    if dtype == dtypes.STRING:
        encoded, checksum = strings.encode(array, name)
        content = memoryview(encoded)
    else:
        content = np.asarray(array, order="C").reshape(-1).view(np.uint8).data
        checksum = crc32c(content)
    offset = _aligned(end, len(content))
    _copy(file, offset, content)
    return Entry(dtype, array.shape, 0, offset, len(content), table.mask(checksum))


def _aligned(end: int, size: int) -> int:
    if not size:
        return end  # a place behind the end of the file would be out of bounds
    alignment = _PAGE if size >= _PAGE else _ALIGNMENT
    return -(-end // alignment) * alignment


def _copy(file: BinaryIO, offset: int, content: memoryview) -> None:
    while content:
        written = os.pwrite(file.fileno(), content, offset)
        content, offset = content[written:], offset + written


def _encode(entries: Mapping[str, Entry]) -> bytes:
    version = bundle_pb2.BundleHeader.VersionDef(producer=_PRODUCER)
    header = bundle_pb2.BundleHeader(num_shards=1, version=version)
    records = [(b"", header.SerializeToString())]
    for name, entry in entries.items():
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


# Reading --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bundle:
    """A checkpoint whose index was read and checked and whose shards are mapped. Safe to use from any thread.

    The mapping is private and writable: numpy and dlpack refuse to share what is read-only, and a write would stay in
    this process. Whoever truncates a mapped file in place ends this process with SIGBUS; our publisher never does.
    """

    prefix: Path
    entries: Mapping[str, Entry]
    _paths: Mapping[int, Path]
    _shards: Mapping[int, mmap.mmap | bytes]

    @classmethod
    def open(cls, prefix: Path) -> Bundle:
        """Read the index, check its checksums and every bound, map the shards.

        Raises CorruptCheckpointError where the files are not a whole checkpoint.
        """
        path = index_file(prefix)
        try:
            records = table.read(files.content(path, limit=_INDEX_LIMIT), path=path)
        except OSError as error:
            raise CorruptCheckpointError(path, expected="an index file", found=error.strerror) from error
        shards = _read_header(path, next(records, None))
        entries = dict(_read_entry(path, shards, name, value) for name, value in records)
        paths = {shard: data_file(prefix, shard, shards) for shard in {entry.shard for entry in entries.values()}}
        mapped = {shard: _map(path) for shard, path in paths.items()}
        for name, entry in entries.items():
            length = len(mapped[entry.shard])
            if entry.offset + entry.size > length:
                expected = f"{entry.size} bytes at {entry.offset} for {files.shown(name)}"
                raise CorruptCheckpointError(paths[entry.shard], expected=expected, found=f"a file of {length} bytes")
        return cls(prefix, MappingProxyType(entries), paths, mapped)

    def array(self, name: str) -> Array:
        """The tensor, in the mapping itself (strings: an object array of bytes). It keeps the mapping alive.

        Its checksum is not checked; its address is not aligned where TensorFlow wrote the file. Raises KeyError for a
        name that is not in `entries`, CorruptCheckpointError for malformed strings or a dtype that numpy lacks.
        """
        entry = self.entries[name]
        dtype = self._numpy_dtype(name)
        if entry.dtype == dtypes.STRING:
            decoded, _ = strings.decode(self._bytes(entry), entry.shape, path=self._paths[entry.shard], name=name)
            return decoded
        if not entry.size:
            return np.empty(entry.shape, dtype)
        count = entry.size // dtype.itemsize
        return np.frombuffer(self._shards[entry.shard], dtype, count, entry.offset).reshape(entry.shape)

    def verify(self, names: Iterable[str]) -> None:
        """Compute the checksum of each tensor. Raises CorruptCheckpointError at the first that differs."""
        for name in names:
            entry = self.entries[name]
            path = self._paths[entry.shard]
            self._numpy_dtype(name)
            content = self._bytes(entry)
            if entry.dtype == dtypes.STRING:
                _, checksum = strings.decode(content, entry.shape, path=path, name=name)
            else:
                checksum = crc32c(content)
            if (found := table.mask(checksum)) != entry.crc32c:
                raise CorruptCheckpointError(
                    path, expected=f"checksum {entry.crc32c:#010x} of {files.shown(name)}", found=f"{found:#010x}"
                )

    def _bytes(self, entry: Entry) -> memoryview:
        return memoryview(self._shards[entry.shard])[entry.offset : entry.offset + entry.size]

    def _numpy_dtype(self, name: str) -> np.dtype[np.generic]:
        entry = self.entries[name]
        dtype = dtypes.to_numpy(entry.dtype)
        if dtype is None:
            found = f"{files.shown(name)} of {dtypes.name(entry.dtype)}"
            raise CorruptCheckpointError(self._paths[entry.shard], expected="a dtype that can be read", found=found)
        return dtype


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


def _map(path: Path) -> mmap.mmap | bytes:
    try:
        with files.regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                return b""  # cannot be mapped
            return mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise CorruptCheckpointError(path, expected="a data file", found=error.strerror) from error
