"""Checkpoints for tests of reading, written by the simplest code that produces our layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from crc32c import crc32c

from paramsync import dtypes
from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.dtypes import Array
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Entry, Index, data_file, index_file
from paramsync.tensorbundle.sstable import mask

ONES: dict[str, Array] = {"a": np.ones(5000, np.float32), "b": np.ones(3, np.int64)}
"""The tensors of a small checkpoint: one larger than a page, one smaller."""

_PAGE = 4096


def write(prefix: Path, tensors: Mapping[str, Array], *, shards: int = 1) -> None:
    """Write a checkpoint with aligned tensors, distributed to its shards in turn."""
    contents = [bytearray() for _ in range(shards)]
    entries = {}
    for number, (name, array) in enumerate(sorted(tensors.items(), key=lambda item: item[0].encode())):
        shard = number % shards
        content = contents[shard]
        dtype = dtypes.from_numpy(array.dtype)
        assert dtype is not None
        if dtype == dtypes.STRING:
            stored, checksum = index.encode_strings(array, name)
        else:
            stored = np.asarray(array, order="C").tobytes()
            checksum = crc32c(stored)
        if stored:
            content.extend(bytes(-len(content) % (_PAGE if len(stored) >= _PAGE else ALIGNMENT)))
        entries[name] = Entry(dtype, array.shape, shard, len(content), len(stored), mask(checksum))
        content.extend(stored)
    for shard, content in enumerate(contents):
        data_file(prefix, shard, shards).write_bytes(content)
    index_file(prefix).write_bytes(index.encode(Index(shards, entries)))


def resident(directory: Path, name: str = "") -> int:
    """Count the bytes of a directory's files that readers have in this process's page table.

    Shared mappings, which only writers have, are left out, and so are files whose names do not begin with `name`.
    """
    return _in_page_table(lambda line: f" {directory}/{name}" in line and line.split()[1].endswith("p"))


def present(path: Path) -> int:
    """Do the same as `resident` for one file, even if it was mapped under another name."""
    inode = str(path.stat().st_ino)
    return _in_page_table(lambda line: line.split()[4] == inode and line.split()[1].endswith("p"))


def _in_page_table(is_of_it: Callable[[str], bool]) -> int:
    found = 0
    of_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            of_it = is_of_it(line)
        elif of_it and first == "Rss:":
            found += int(rest[0]) << 10
    return found


def assert_same(found: object, expected: Array) -> None:
    """Fail unless both have the same bits, dtype and shape."""
    if expected.dtype == object:
        array = np.array(found, object)
        assert array.shape == expected.shape
        assert array.tolist() == expected.tolist()
        return
    array = np.asarray(found)
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert array.tobytes() == expected.tobytes()
