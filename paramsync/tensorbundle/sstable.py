"""Reads and writes LevelDB-style immutable tables: sorted keys and their values, in checksummed blocks.

A record is `varint shared | varint unshared | varint value length | rest of the key | value`: a key omits the prefix
that it shares with the previous key. Every 16th record is a restart, whose key shares nothing. A block consists of
records, the offsets of the restarts, and the number of restarts. After each block come its compression type and the
masked crc32c of block and type. A footer at the end points to the index block, which points to all other blocks. Older
releases of TensorFlow compressed blocks with snappy; such blocks are read, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from cramjam import DecompressionError, snappy
from crc32c import crc32c

from paramsync.errors import CorruptCheckpointError
from paramsync.host import files

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # bytes: two block handles, padded with zeros to 40, and the magic number
_TRAILER = struct.Struct("<BI")  # compression type, masked crc32c
_UINT32 = 4  # bytes
_UINT64 = struct.Struct("<Q")
_UNCOMPRESSED, _SNAPPY = 0, 1
_BLOCK = 256 * 1024
_RESTART = 16
_CONTINUED = 0x80  # the bit of a varint's byte that announces another byte
# Keys that share long prefixes could make a small file expand. Writers repeat the whole key every 16 records, so all
# keys together are at most 16 times as long as the file.
_EXPANSION = 16
KEYS = 64 << 20  # bytes of all keys together, however large the file is
CONTENT = 64 << 20  # most bytes of all compressed blocks together, once decompressed
_RATIO = 22  # snappy expands at most this much: a copy of 64 bytes takes 3 bytes


def mask(crc: int) -> int:
    """Return the stored form of a checksum: a checksum over bytes that contain a plain checksum would be weak."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write(records: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the bytes of a table of these records. Their keys must be in ascending order."""
    table = bytearray()
    handles = []
    block = _BlockWriter(_RESTART)
    for key, value in records:
        if len(block.content) >= _BLOCK:
            handles.append((block.last, _append(table, block)))
            block = _BlockWriter(_RESTART)
        block.add(key, value)
    handles.append((block.last, _append(table, block)))
    index = _BlockWriter(1)
    metaindex = _append(table, _BlockWriter(_RESTART))
    for last, handle in handles:
        index.add(last, handle)
    return bytes(table + (metaindex + _append(table, index)).ljust(_FOOTER - 8, b"\0") + _UINT64.pack(_MAGIC))


def read(content: bytes, *, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a table in ascending order of their keys. `path` is named in errors.

    Raises CorruptCheckpointError for bytes that no writer of tables writes.
    """
    reader = _Reader(content, path)
    previous: bytes | None = None
    end = 0
    for offset, size in reader.handles():
        if offset < end:  # an empty block that is listed many times would be read for hours
            raise reader.fault(f"a block behind {end}", f"one at {offset}")
        end = offset + size
        for key, value in reader.records(reader.block(offset, size)):
            if previous is not None and key <= previous:
                raise reader.fault(f"a key after {files.shown(previous)}", files.shown(key))
            previous = key
            yield key, value


@lru_cache(maxsize=1 << 12)
def varint(value: int) -> bytes:
    """Encode a number with seven bits in each byte, the lowest first. The high bit says that another byte follows."""
    encoded = bytearray()
    while value >= _CONTINUED:
        encoded.append(value & 0x7F | _CONTINUED)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(content: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it.

    Raises IndexError if the number is cut off, ValueError if it has more than 64 bits.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, position
    raise ValueError("more than 64 bits")


def read_varints(content: bytes | memoryview, position: int, count: int) -> tuple[list[int], int]:
    """Return `count` numbers from a position on, and the position after them. Raises as `read_varint` does."""
    numbers = []
    for _ in range(count):
        number, position = read_varint(content, position)
        numbers.append(number)
    return numbers, position


class _BlockWriter:
    def __init__(self, restart: int) -> None:
        self.content = bytearray()
        self.last = b""
        self._restart = restart
        self._restarts = [0]
        self._records = 0

    def add(self, key: bytes, value: bytes) -> None:
        if self._records and key <= self.last:
            raise ValueError(f"keys: expected one after {self.last!r}, found {key!r}")
        shared = 0
        if self._records % self._restart:
            shared = _shared(self.last, key)
        elif self._records:
            self._restarts.append(len(self.content))
        sizes = (shared, len(key) - shared, len(value))
        head = bytes(sizes) if max(sizes) < _CONTINUED else b"".join(map(varint, sizes))
        self.content += head + key[shared:] + value
        self.last = key
        self._records += 1

    def finish(self) -> bytes:
        return bytes(self.content) + struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))


def _append(table: bytearray, block: _BlockWriter) -> bytes:
    """Append a block with its trailer to the table. Returns its handle."""
    content = block.finish()
    handle = varint(len(table)) + varint(len(content))
    checksum = mask(crc32c(bytes([_UNCOMPRESSED]), crc32c(content)))
    table += content + _TRAILER.pack(_UNCOMPRESSED, checksum)
    return handle


def _shared(first: bytes, second: bytes) -> int:
    length = min(len(first), len(second))
    differing = int.from_bytes(first[:length], "big") ^ int.from_bytes(second[:length], "big")
    return length - (differing.bit_length() + 7) // 8


class _Reader:
    """Reads and checks the blocks of an untrusted table, and the records in the blocks."""

    def __init__(self, content: bytes, path: Path) -> None:
        self._content = content
        self._path = path
        self._size = len(content)  # an upper limit for the bytes of all blocks, decompressed
        self._keys = 0  # bytes of all keys so far

    def fault(self, expected: object, found: object) -> CorruptCheckpointError:
        return CorruptCheckpointError(self._path, expected=expected, found=found)

    def handles(self) -> Iterator[tuple[int, int]]:
        """Yield the offset and size of each block of records."""
        if len(self._content) < _FOOTER:
            raise self.fault(f"a table of at least {_FOOTER} bytes", f"{len(self._content)} bytes")
        footer = self._content[-_FOOTER:]
        (magic,) = _UINT64.unpack(footer[-8:])
        if magic != _MAGIC:
            raise self.fault(f"a table, which ends with {_MAGIC:#x}", f"{magic:#x}")
        # the first handle is that of the empty metaindex
        (_, _, *handle), _ = self._varints(footer, 0, 4, "two block handles")
        for _, value in self.records(self.block(*handle)):
            (offset, size), _ = self._varints(value, 0, 2, "a block handle")
            yield offset, size

    def block(self, offset: int, size: int) -> bytes:
        """Return the content of a block. Verifies its checksum and decompresses it."""
        end = offset + size
        if end + _TRAILER.size > len(self._content) - _FOOTER:
            raise self.fault(f"a block within {len(self._content)} bytes", f"one of {size} bytes at {offset}")
        kind, stored = _TRAILER.unpack_from(self._content, end)
        actual = mask(crc32c(memoryview(self._content)[offset : end + 1]))
        if actual != stored:
            raise self.fault(f"checksum {stored:#010x} of the block at {offset}", f"{actual:#010x}")
        if kind == _SNAPPY:
            return self._decompressed(offset, end)
        if kind != _UNCOMPRESSED:
            raise self.fault("blocks of compression type 0 or 1 (snappy)", f"compression type {kind} at {offset}")
        return self._content[offset:end]

    def _decompressed(self, offset: int, end: int) -> bytes:
        """Return the content of a compressed block. Its size must be the size stored at the block's beginning."""
        compressed = memoryview(self._content)[offset:end]
        try:
            size, _ = read_varint(compressed, 0)
            self._size += size
            if self._size > len(self._content) + CONTENT:
                raise self.fault(f"compressed blocks of at most {CONTENT} bytes together", "more")
            if size > _RATIO * len(compressed):
                raise self.fault(f"at most {_RATIO * len(compressed)} bytes compressed at {offset}", size)
            block = bytearray(size)
            if snappy.decompress_raw_into(compressed, block) == size:
                return bytes(block)
        except (IndexError, ValueError, DecompressionError) as error:
            raise self.fault(f"a block compressed by snappy at {offset}", f"a malformed one, {error}") from error
        raise self.fault(f"a block compressed by snappy at {offset}", "one of another size than it says")

    def records(self, block: bytes) -> Iterator[tuple[bytes, bytes]]:
        end = self._end_of_records(block)
        position = 0
        key = b""
        while position < end:
            shared, unshared, length = block[position : position + 3]  # the block has 4 more bytes after `end`
            if shared | unshared | length < 0x80:  # each number has one byte, as in nearly all records
                position += 3
            else:
                (shared, unshared, length), position = self._varints(block, position, 3, "a record")
            start, position = position, position + unshared + length
            if shared > len(key) or position > end:
                found = f"one of {shared} + {unshared} and {length} bytes"
                raise self.fault(f"a record that shares at most {len(key)} bytes and ends by {end}", found)
            self._keys += shared + unshared
            if self._keys > min(_EXPANSION * self._size, KEYS):
                raise self.fault(f"keys of at most {min(_EXPANSION * self._size, KEYS)} bytes together", "more")
            key = key[:shared] + block[start : start + unshared]
            yield key, block[start + unshared : position]

    def _end_of_records(self, block: bytes) -> int:
        restarts = int.from_bytes(block[-_UINT32:], "little")
        end = len(block) - _UINT32 * (restarts + 1)
        if end < 0:
            raise self.fault(f"a block with its count of restarts, and {restarts} restarts", f"{len(block)} bytes")
        return end

    def _varints(self, content: bytes, position: int, count: int, expected: str) -> tuple[list[int], int]:
        try:
            return read_varints(content, position, count)
        except (IndexError, ValueError) as error:
            raise self.fault(expected, f"a malformed one at {position}, {content[position:][:20].hex()}") from error
