"""An index that would take long to read, or much memory, is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError
from paramsync.tensorbundle import index, sstable
from paramsync.tensorbundle.index import Entry, Index
from paramsync.v1 import bundle_pb2
from tests.hostile.fuzz import mutate
from tests.support import compressed

WHERE = Path("a.index")

MIB = 1 << 20


def refused(content: bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=message):
        index.decode(content, path=WHERE)


HEAD = (b"", bundle_pb2.BundleHeader(num_shards=1).SerializeToString())


def record(key: bytes, value: bytes) -> bytes:
    """Shares nothing with the one before."""
    return b"\0" + sstable.varint(len(key)) + sstable.varint(len(value)) + key + value


def test_a_million_tensors_are_refused() -> None:
    value = bundle_pb2.BundleEntry(dtype=1, shape={"dim": [{"size": 0}]}).SerializeToString()
    records = b"".join([record(b"%07d" % number, value) for number in range(1_000_000)])
    refused(mutate.assembled([record(*HEAD) + records + bytes(4)]), "at most 262144 tensors, found more")


def test_a_shape_of_a_hundred_thousand_sizes_is_refused() -> None:
    shape = bundle_pb2.TensorShape(dim=[bundle_pb2.TensorShape.Dim()] * 100_000)
    value = bundle_pb2.BundleEntry(dtype=1, shape=shape).SerializeToString()
    refused(sstable.write([HEAD, (b"a", value)]), "found 100000 sizes")


def test_names_that_share_long_beginnings_are_refused() -> None:
    long = b"k" * 4_000_000
    block = record(*HEAD) + record(long, b"")
    block += b"".join(sstable.varint(len(long) + number) + b"\1\0k" for number in range(100_000))
    refused(mutate.assembled([block + bytes(4)]), "keys of at most .* bytes together")


def test_few_bytes_that_become_many_are_refused() -> None:
    empty = bytes(9 * MIB - 4) + ((9 * MIB - 4) // 4).to_bytes(4, "little")  # a block of restarts alone
    first, large = compressed.of_snappy(record(*HEAD) + bytes(4)), compressed.of_snappy(empty)
    refused(compressed.assembled([first, *[large] * 8]), "compressed blocks of at most 67108864 bytes together")
    refused(compressed.assembled([sstable.varint(60 * MIB) + bytes(9)]), "bytes compressed at 0")


def listed(blocks: bytes, listing: bytes) -> bytes:
    """A table with these blocks, and a list of them that may say anything."""
    footer = b"\0\0" + sstable.varint(len(blocks)) + sstable.varint(len(listing))
    return blocks + mutate.trailed(listing) + footer.ljust(40, b"\0") + sstable.write([])[-8:]


def test_a_list_of_blocks_whose_keys_share_long_beginnings_is_refused() -> None:
    long = b"k" * 4_000_000
    empty = mutate.trailed(bytes(4))
    handles = [sstable.varint(len(empty) * number) + b"\4" for number in range(50_000)]
    shared = b"".join(sstable.varint(len(long)) + b"\0" + sstable.varint(len(one)) + one for one in handles[1:])
    content = listed(empty * len(handles), record(long, handles[0]) + shared + bytes(4))
    refused(content, "keys of at most .* bytes together")


def test_a_block_that_is_listed_again_and_again_is_refused() -> None:
    restarts = 8 * MIB
    block = bytes(4 * restarts) + restarts.to_bytes(4, "little")  # no record, nothing but restarts
    handle = b"\0" + sstable.varint(len(block))
    listing = b"".join(record(number.to_bytes(4, "big"), handle) for number in range(50_000))
    refused(listed(mutate.trailed(block), listing + bytes(4)), "a block behind")


@pytest.mark.parametrize("count", [-1, 4097, (1 << 31) - 1])
def test_shards_that_nobody_could_open_are_refused(count: int) -> None:
    refused(sstable.write([(b"", bundle_pb2.BundleHeader(num_shards=count).SerializeToString())]), "1 to 4096 shards")


def test_tensors_that_overlap_are_refused() -> None:
    one = Entry(1, (8,), 0, 64, 32, 1)
    others = [Entry(1, (8,), 0, 60, 32, 1), Entry(1, (1,), 0, 92, 4, 1), Entry(2, (4,), 0, 72, 32, 1)]
    for other in others:
        content = index.encode(Index(2, {"a": one, "b": other}))
        with pytest.raises(CorruptCheckpointError, match="tensors that do not overlap"):
            index.decode(content, path=WHERE)
    for other in (one, Entry(3, (2, 4), 0, 64, 32, 1), Entry(1, (8,), 1, 60, 32, 1), Entry(1, (0,), 0, 70, 0, 1)):
        index.decode(index.encode(Index(2, {"a": one, "b": other})), path=WHERE)


def test_strings_in_a_sparse_file_take_no_memory(tmp_path: Path) -> None:
    prefix = tmp_path / "ckpt-1"
    size = 1 << 40
    for shape in ((size - 4,), (1 << 24, 2)):
        index.index_file(prefix).write_bytes(index.encode(Index(1, {"a": Entry(7, shape, 0, 0, size, 0)})))
        index.data_file(prefix, 0, 1).touch()
        os.truncate(index.data_file(prefix, 0, 1), size)
        with pytest.raises(CorruptCheckpointError, match="at most 16777216 strings"):
            Bundle.open(prefix).verify(["a"])
