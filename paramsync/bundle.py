"""A checkpoint, mapped: its index read and checked, its tensors as arrays where they lie in the files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from paramsync import dtypes, files, index, strings
from paramsync.checksums import crc32c, mask
from paramsync.errors import CorruptCheckpointError
from paramsync.index import Entry, data_file, index_file

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


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
        found = index.read(index_file(prefix))
        entries, shards = found.entries, found.shards
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
            if (found := mask(checksum)) != entry.crc32c:
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


def _map(path: Path) -> mmap.mmap | bytes:
    try:
        with files.regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                return b""  # cannot be mapped
            return mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise CorruptCheckpointError(path, expected="a data file", found=error.strerror) from error
