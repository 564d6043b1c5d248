"""Writes checkpoints that TensorFlow reads: tensors aligned, so that they can be used where they lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from paramsync import dtypes, files, index, strings
from paramsync.bundle import Array
from paramsync.checksums import crc32c, mask
from paramsync.errors import ParameterError
from paramsync.index import Entry, Index, data_file, index_file

_ALIGNMENT = 64
_PAGE = 4096


def write(prefix: Path, tensors: Mapping[str, Array]) -> int:
    """Write a checkpoint with one data shard; returns how many bytes its tensors have, padding not counted.

    Object arrays hold strings, as bytes. Both files are written aside. The data takes its name first, so that an index
    never speaks of data that is not there; where anything fails, neither does. Raises OSError, and ParameterError for
    what TensorFlow cannot store.
    """
    with files.aside(index_file(prefix)) as listing, files.aside(data_file(prefix, 0, 1)) as data:
        entries: dict[str, Entry] = {}
        end = 0
        for name in sorted(tensors, key=str.encode):
            entries[name] = entry = _write_tensor(data, end, name, tensors[name])
            end = entry.offset + entry.size
        listing.write(index.encode(Index(1, entries)))
        listing.flush()  # a full disk shows here, before the data has its name
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
    return Entry(dtype, array.shape, 0, offset, len(content), mask(checksum))


def _aligned(end: int, size: int) -> int:
    if not size:
        return end  # a place behind the end of the file would be out of bounds
    alignment = _PAGE if size >= _PAGE else _ALIGNMENT
    return -(-end // alignment) * alignment


def _copy(file: BinaryIO, offset: int, content: memoryview) -> None:
    while content:
        written = os.pwrite(file.fileno(), content, offset)
        content, offset = content[written:], offset + written
