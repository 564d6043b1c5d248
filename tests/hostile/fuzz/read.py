"""What is fuzzed: an index that somebody sends, read as far as its tensors, over data that is always the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paramsync import dtypes
from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Entry, Index

WHERE = Path("fuzzed.index")
# A tensor of three strings lies at 64, one variant at 128.
DATA = (
    bytes(64)
    + index.encode_strings(np.array([b"a", b"bb", b""], object), "a")[0].ljust(64, b"\0")
    + bytes(range(256)) * 16
)


def read(content: bytes) -> Index | None:
    """The index, None where it is refused. Any other error than CorruptCheckpointError is a finding."""
    try:
        found = index.decode(content, path=WHERE)
    except CorruptCheckpointError:
        return None
    for name, entry in found.entries.items():
        _check(entry, found.shards)
        _tensor(name, entry)
    if all(entry.dtype >= 0 and not entry.parts for entry in found.entries.values()):
        assert index.decode(index.encode(found), path=WHERE) == found
    return found


def _check(entry: Entry, shards: int) -> None:
    """What everybody relies on who maps files by an index."""
    for piece in entry.pieces:
        assert 0 <= piece.shard < shards
        assert 0 <= piece.offset <= piece.offset + piece.size < 1 << 63
        assert all(0 <= size < 1 << 63 for size in piece.shape)
        dtype = dtypes.to_numpy(piece.dtype)
        assert dtype in (None, object) or piece.size == int(np.prod(piece.shape, dtype=object)) * dtype.itemsize
    assert entry.size == sum(piece.size for piece in entry.pieces)


def _tensor(name: str, entry: Entry) -> None:
    dtype = dtypes.to_numpy(entry.dtype)
    if any(piece.offset + piece.size > len(DATA) for piece in entry.pieces):
        return
    try:
        arrays = [_array(name, piece, dtype) for piece in entry.pieces]
    except CorruptCheckpointError:
        return
    if dtype is not None:
        starts = [part.start for part in entry.parts] or [(0,) * len(entry.shape)]
        assert index.assemble(entry.shape, dtype, zip(starts, arrays, strict=True)).shape == entry.shape


def _array(name: str, entry: Entry, dtype: np.dtype[np.generic] | None) -> Array:
    content = memoryview(DATA)[entry.offset : entry.offset + entry.size]
    if entry.dtype == dtypes.STRING:
        return index.decode_strings(content, entry.shape, path=WHERE, name=name)[0]
    if entry.dtype == dtypes.VARIANT:
        index.checksum_of_variants(content, entry.shape, path=WHERE, name=name)
    if dtype is None:
        return np.empty(0)
    return np.frombuffer(content, dtype, entry.size // dtype.itemsize).reshape(entry.shape)
