"""Indexes that chance made: what is encoded is decoded, nothing else is believed, and high costs are refused."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from paramsync import dtypes
from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError
from paramsync.tensorbundle import index, sstable
from paramsync.tensorbundle.index import Entry, Index
from paramsync.v1 import bundle_pb2
from tests.hostile.fuzz import mutate, read
from tests.support import compressed

WHERE = Path("a.index")

sizes = some.integers(0, 40)

names = some.text(some.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda name: name[0] != "\0")

uint32 = some.integers(0, (1 << 32) - 1)

quick = settings(max_examples=200)


@some.composite
def indexes(draw: some.DrawFn) -> Index:
    """Tensors one behind the other, with gaps, in several shards."""
    shards = draw(some.integers(1, 5))
    ends = [0] * shards
    entries = {}
    for name in draw(some.lists(names, unique=True, max_size=30)):
        number = draw(some.sampled_from([n for n in range(1, 34) if dtypes.to_numpy(n) is not None]))
        shape = tuple(draw(some.lists(sizes, max_size=4)))
        dtype = dtypes.to_numpy(number)
        assert dtype is not None
        size = math.prod(shape) * dtype.itemsize if number != dtypes.STRING else math.prod(shape) + 4
        shard = draw(some.integers(0, shards - 1))
        offset = ends[shard] + draw(some.integers(0, 1 << 40))
        ends[shard] = offset + size
        entries[name] = Entry(number, shape, shard, offset, size, draw(uint32))
    return Index(shards, entries)


@quick
@given(indexes())
def test_what_is_encoded_is_decoded(made: Index) -> None:
    found = index.decode(index.encode(made), path=WHERE)
    assert (found.shards, dict(found.entries)) == (made.shards, dict(made.entries))
    assert list(found.entries) == sorted(made.entries, key=str.encode)


@quick
@given(indexes())
def test_entries_are_encoded_as_protobuf_does(made: Index) -> None:
    records = dict(sstable.read(index.encode(made), path=WHERE))
    for name, entry in made.entries.items():
        message = bundle_pb2.BundleEntry(
            dtype=entry.dtype,
            shape=bundle_pb2.TensorShape(dim=[bundle_pb2.TensorShape.Dim(size=size) for size in entry.shape]),
            shard_id=entry.shard,
            offset=entry.offset,
            size=entry.size,
            crc32c=entry.crc32c,
        )
        assert records[name.encode()] == message.SerializeToString()


@quick
@given(some.lists(some.binary(max_size=300)))
def test_strings_are_read_as_they_were_written(values: list[bytes]) -> None:
    array = np.array([*values, None], object)[:-1]
    encoded, checksum = index.encode_strings(array, "a")
    found, actual = index.decode_strings(memoryview(encoded), array.shape, path=WHERE, name="a")
    assert (found.tolist(), actual) == (values, checksum)


@quick
@given(some.lists(some.lists(some.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=3), some.randoms())
def test_parts_of_any_grid_are_put_together(cuts: list[list[int]], chance: Random) -> None:
    shape = tuple(sum(cut) for cut in cuts)
    whole = np.arange(np.prod(shape)).reshape(shape)
    extents = [list(zip(np.cumsum([0, *cut[:-1]]).tolist(), cut, strict=True)) for cut in cuts]
    parts = [[extents[axis][at] for axis, at in enumerate(cell)] for cell in np.ndindex(*map(len, cuts))]
    chance.shuffle(parts)
    assert index.parts_problem(shape, parts) is None
    places = [tuple(slice(start, start + length) for start, length in part) for part in parts]
    starts = [[start for start, _ in part] for part in parts]
    made = index.assemble(shape, whole.dtype, zip(starts, (whole[place] for place in places), strict=True))
    assert made.tolist() == whole.tolist()
    if len(parts) > 1:
        assert index.parts_problem(shape, parts[1:]) is not None
        assert index.parts_problem(shape, [*parts, parts[0]]) is not None
        assert index.parts_problem((*shape[:-1], shape[-1] + 1), parts) is not None


@quick
@given(some.binary(max_size=400))
def test_arbitrary_bytes_are_refused(content: bytes) -> None:
    for end in (b"", sstable.write([])[-8:]):
        with pytest.raises(CorruptCheckpointError):
            index.decode(content + end, path=WHERE)


@quick
@given(some.binary(max_size=300), some.lists(sizes, max_size=3))
def test_arbitrary_bytes_of_strings_and_variants_are_refused_or_sound(content: bytes, shape: list[int]) -> None:
    for decode in (index.decode_strings, index.checksum_of_variants):
        with suppress(CorruptCheckpointError):
            decode(memoryview(content), tuple(shape), path=WHERE, name="a")


@pytest.mark.parametrize("seed", range(4))
def test_what_somebody_changed_who_knows_the_format_is_refused_or_sound(seed: int) -> None:
    chance = Random(seed)
    found = mutate.seeds()
    accepted = 0
    for _ in range(4000):
        content = mutate.mutated(chance.choice(found), chance)
        if read.read(content) is not None:
            accepted += 1
            if len(found) < 200:
                found.append(content)
    assert 400 < accepted < 3600  # neither could the reader refuse everything, nor the changes be none


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
