"""Changes checkpoints as somebody would who knows the format: what is not to be checked stays right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from crc32c import crc32c
from google.protobuf.message import DecodeError

from paramsync.errors import CorruptCheckpointError
from paramsync.tensorbundle import index, sstable
from paramsync.tensorbundle.index import Entry, Index, encode
from paramsync.tensorbundle.sstable import mask
from paramsync.v1 import bundle_pb2

Record = tuple[bytes, bytes]
Blocks = list[list[Record]]

_NUMBERS = [
    0, 1, 2, 3, 7, 21, 24, 63, 64, 127, 128, 255, 4096, 65535,
    1 << 20, (1 << 31) - 1, 1 << 32, 1 << 62, (1 << 63) - 1,
]  # fmt: skip
_INT32, _INT64 = 1 << 31, 1 << 63


def seeds() -> list[bytes]:
    """Indexes to begin with: empty, of several dtypes and shards, of many records, of a partitioned variable."""
    float32 = Entry(1, (2, 3), 0, 0, 24, 0x12345678)
    several = {
        "a": float32,
        "b/c": Entry(14, (4, 1), 1, 64, 8, 0),
        "empty": Entry(9, (0, 5), 0, 0, 0, 0),
        "scalar": Entry(10, (), 2, 0, 1, 7),
        "strings": Entry(7, (3,), 2, 64, 20, 9),
        "variant": Entry(21, (), 2, 128, 58, 9),
    }
    many = {f"layer_{number}/kernel": Entry(3, (number,), 0, 4096 * number, 4 * number, number) for number in range(90)}
    return [encode(Index(1, {})), encode(Index(3, several)), encode(Index(1, many)), _partitioned()]


def mutated(content: bytes, chance: Random, other: Callable[[bytes], bytes] | None = None) -> bytes:
    """The table with something changed: bytes, a block with its checksum, a record, a field.

    `other` changes bytes without regard to what they mean.
    """
    change = other or (lambda given: _bytes(given, chance))
    blocks = _blocks(content)
    kind = chance.randrange(10)
    if blocks is None or kind == 0:
        return repaired(change(content))
    for _ in range(chance.choice((1, 1, 2, 5))):
        _change(blocks, chance, change)
    made = assembled([_block(block, chance) for block in blocks])
    return repaired(change(made)) if kind == 1 else made


def assembled(blocks: Sequence[bytes], *, kind: int = 0) -> bytes:
    """A table of blocks of this compression type, whatever is in them, with the right checksums."""
    content = bytearray()
    index = bytearray()
    for number, block in enumerate(blocks):
        handle = sstable.varint(len(content)) + sstable.varint(len(block))
        index += b"\0\4" + sstable.varint(len(handle)) + number.to_bytes(4, "big") + handle
        content += trailed(block, kind)
    at = len(content)
    index += bytes(4)
    content += trailed(bytes(index))
    footer = b"\0\0" + sstable.varint(at) + sstable.varint(len(index))
    return bytes(content) + footer.ljust(40, b"\0") + sstable.write([])[-8:]


def repaired(content: bytes) -> bytes:
    """The same bytes, with the right checksum behind every block that the footer leads to, and the right end."""
    fixed = bytearray(content[:-8] + sstable.write([])[-8:])
    footer = bytes(fixed[-48:])
    try:
        position = 0
        for _ in range(3):
            _, position = sstable.read_varint(footer, position)
        at = sstable.read_varint(footer, sstable.read_varint(footer, sstable.read_varint(footer, 0)[1])[1])[0]
        size = sstable.read_varint(footer, position)[0]
        index = bytes(fixed[at : at + size])
        for _, handle in sstable._Reader(bytes(fixed), Path()).records(index):
            begin, behind = sstable.read_varint(handle, 0)
            _repair(fixed, begin, sstable.read_varint(handle, behind)[0])
        _repair(fixed, at, size)
    except (IndexError, ValueError, CorruptCheckpointError):
        pass  # it leads nowhere: that, too, is to be tried
    return bytes(fixed)


def _repair(content: bytearray, begin: int, size: int) -> None:
    end = begin + size
    if end + 5 <= len(content) - 48:
        content[end : end + 5] = trailed(bytes(content[begin:end]))[-5:]


def trailed(block: bytes, kind: int = 0) -> bytes:
    """The block with its compression type and its checksum."""
    typed = block + bytes([kind])
    return typed + mask(crc32c(typed)).to_bytes(4, "little")


def _blocks(content: bytes) -> Blocks | None:
    """The records by block, as far as they can be read."""
    reader = sstable._Reader(content, Path())
    try:
        return [list(reader.records(reader.block(offset, size))) for offset, size in reader.handles()] or None
    except CorruptCheckpointError:
        return None


def _block(records: list[Record], chance: Random) -> bytes:
    """A block as writers make it, or nearly: keys may be in any order, restarts anywhere."""
    content = bytearray()
    last = b""
    for number, (key, value) in enumerate(records):
        shared = 0
        while number % 16 and shared < min(len(last), len(key)) and last[shared] == key[shared]:
            shared += 1
        lengths = [shared, len(key) - shared, len(value)]
        if chance.random() < 0.005:
            lengths[chance.randrange(3)] = chance.choice(_NUMBERS)
        content += b"".join(map(sstable.varint, lengths)) + key[shared:] + value
        last = key
    restarts = chance.choice(_NUMBERS) % _INT32 if chance.random() < 0.01 else 0
    return bytes(content) + restarts.to_bytes(4, "little")


def _change(blocks: Blocks, chance: Random, change: Callable[[bytes], bytes]) -> None:
    block = chance.choice(blocks)
    if not block or chance.random() < 0.05:
        blocks.insert(chance.randrange(len(blocks) + 1), list(block))
        return
    at = chance.randrange(len(block))
    key, value = block[at]
    kind = chance.randrange(12)
    if kind == 0:
        del block[at]
    elif kind == 1:
        block.insert(at, (change(key), value))
    elif kind == 2:
        block[at] = (change(key), value)
    elif kind == 3:
        block[at] = (key, change(value))
    elif kind == 4:
        block[at] = (key, chance.choice(chance.choice(blocks) or [(b"", b"")])[1])
    elif kind == 5:
        block.sort()
    elif kind == 6:
        blocks.append([block.pop()])
    else:
        block[at] = (key, _field(key, value, chance))


def _field(key: bytes, value: bytes, chance: Random) -> bytes:
    """A header or an entry with one field changed."""
    number = chance.choice(_NUMBERS) * chance.choice((1, 1, 1, -1))
    small = (number + _INT32) % (2 * _INT32) - _INT32
    large = (number + _INT64) % (2 * _INT64) - _INT64
    try:
        if not key:
            header = bundle_pb2.BundleHeader.FromString(value)
            header.num_shards = small
            return header.SerializeToString()
        entry = bundle_pb2.BundleEntry.FromString(value)
    except DecodeError:
        return value
    kind = chance.randrange(9)
    if kind == 0:
        entry.dtype = chance.randrange(40)
    elif kind == 1:
        entry.shard_id = small
    elif kind == 2:
        entry.offset = large
    elif kind == 3:
        entry.size = large
    elif kind == 4:
        entry.shape.dim.add(size=large)
    elif kind == 5 and entry.shape.dim:
        chance.choice(entry.shape.dim).size = large
    elif kind == 6 and entry.slices:
        entry.slices.add().CopyFrom(chance.choice(entry.slices))
    elif kind == 7:
        extent = (chance.choice(entry.slices) if entry.slices else entry.slices.add()).extent
        one = chance.choice(extent) if extent and chance.random() < 0.7 else extent.add()
        one.start, one.length = chance.choice(((large, 1), (0, large), (1, 1), (large, large)))
    elif entry.slices:
        del entry.slices[chance.randrange(len(entry.slices))]
    return entry.SerializeToString()


def _bytes(content: bytes, chance: Random) -> bytes:
    changed = bytearray(content)
    at = chance.randrange(len(changed) + 1)
    kind = chance.randrange(4)
    if kind == 0:
        changed[at:at] = chance.randbytes(chance.randrange(1, 20))
    elif kind == 1:
        del changed[at : at + chance.randrange(1, 20)]
    elif changed:
        at %= len(changed)
        changed[at] = chance.randrange(256) if kind == 2 else changed[at] ^ 1 << chance.randrange(8)
    return bytes(changed)


def _partitioned() -> bytes:
    """Rows in three parts, the last dimension whole."""
    records: list[Record] = []
    whole = bundle_pb2.BundleEntry(dtype=1, shape={"dim": [{"size": 5}, {"size": 3}]})
    for start, length in ((0, 2), (2, 2), (4, 1)):
        extent = whole.slices.add().extent
        extent.add(start=start, length=length)
        extent.add()
        part = bundle_pb2.BundleEntry(
            dtype=1, shape={"dim": [{"size": length}, {"size": 3}]}, offset=12 * start, size=12 * length
        )
        records.append((index.part_key("k/w", [(start, length), index.WHOLE]), part.SerializeToString()))
    header = bundle_pb2.BundleHeader(num_shards=1)
    return sstable.write([(b"", header.SerializeToString()), *records, (b"k/w", whole.SerializeToString())])
