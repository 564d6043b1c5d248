"""Indexes by the thousand that chance made: what is encoded is decoded, and nothing else is believed."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from paramsync import dtypes
from paramsync.errors import CorruptCheckpointError
from paramsync.tensorbundle import index, sstable
from paramsync.tensorbundle.index import Entry, Index
from paramsync.v1 import bundle_pb2
from tests.hostile.fuzz import mutate, read

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
