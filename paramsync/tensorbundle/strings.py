"""Encodes and decodes a tensor of strings: lengths as varints, the masked crc32c of the lengths, then the bytes.

Both checksums are computed over each length as a number of 4 bytes (8 where it needs them), not as it is stored.
Variants are stored in much the same way, and stay opaque here.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from crc32c import crc32c

from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError, ParameterError
from paramsync.host import files
from paramsync.tensorbundle import sstable
from paramsync.tensorbundle.sstable import mask

_CHECKSUM = 4  # bytes
_LIMIT = 1 << 24  # strings: each takes tens of bytes of memory, and one byte of a file that may be sparse


def encode(array: Array, name: str) -> tuple[bytes, int]:
    """The bytes to store, and their checksum, not masked. Raises ParameterError for strings that could not be read."""
    if array.size > _LIMIT:
        raise ParameterError(files.shown(name), expected=f"at most {_LIMIT} strings", found=array.size)
    values = [_encoded(value, name) for value in array.reshape(-1).tolist()]
    lengths = [len(value) for value in values]
    checksum = _checksum_of_lengths(lengths)
    stored = _stored(checksum)
    body = b"".join(values)
    return b"".join(map(sstable.varint, lengths)) + stored + body, crc32c(body, crc32c(stored, checksum))


def decode(content: memoryview, shape: tuple[int, ...], *, path: Path, name: str) -> tuple[Array, int]:
    """The strings, and the checksum of all stored bytes, not masked.

    Raises CorruptCheckpointError where the lengths are not those of the bytes that follow.
    """
    count = math.prod(shape)
    lengths, position = _read_lengths(content, count, path=path, name=name)
    checksum = _checksum_of_lengths(lengths)
    start = position + _CHECKSUM
    stored = bytes(content[position:start])
    if stored != _stored(checksum):
        expected = f"lengths of {files.shown(name)} that fit their checksum"
        raise CorruptCheckpointError(path, expected=expected, found="others")
    if start + sum(lengths) != len(content):
        expected = f"{sum(lengths)} bytes of strings in {files.shown(name)}"
        raise CorruptCheckpointError(path, expected=expected, found=len(content) - start)
    array = np.empty(count, object)
    checksum = crc32c(content[start:], crc32c(stored, checksum))
    for at, length in enumerate(lengths):
        array[at] = bytes(content[start : start + length])
        start += length
    return array.reshape(shape), checksum


def checksum_of_variants(content: memoryview, shape: tuple[int, ...], *, path: Path, name: str) -> int:
    """The checksum, not masked, of serialized variants, as iterators over data and lists of tensors leave them.

    A variant is stored as its length, its bytes, and the masked checksum of all so far. Raises as `decode` does.
    """
    position = checksum = 0
    for _ in range(math.prod(shape)):
        (length,), start = _read_lengths(content[position:], 1, path=path, name=name)
        start += position
        position = start + length + _CHECKSUM
        checksum = crc32c(content[start : start + length], crc32c(length.to_bytes(8, "little"), checksum))
        stored = bytes(content[start + length : position])
        if stored != _stored(checksum):
            expected = f"variants of {files.shown(name)} that fit their checksums"
            raise CorruptCheckpointError(path, expected=expected, found="others")
        checksum = crc32c(stored, checksum)
    if position != len(content):
        expected = f"{position} bytes of variants in {files.shown(name)}"
        raise CorruptCheckpointError(path, expected=expected, found=len(content))
    return checksum


def size_problem(count: int, size: int, *, variants: bool = False) -> tuple[str, object] | None:
    """What is expected of so many strings, or variants, in so many bytes, and what is found; None where they fit."""
    if count > _LIMIT:
        return f"at most {_LIMIT} strings", count
    least = count * (1 + _CHECKSUM) if variants else count + _CHECKSUM
    return None if size >= least else (f"at least {least} bytes for {count} strings", size)


def _stored(checksum: int) -> bytes:
    return mask(checksum).to_bytes(_CHECKSUM, "little")


def _encoded(value: object, name: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ParameterError(files.shown(name), expected="bytes in an array of objects", found=type(value).__name__)
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        found = files.shown(value)
        raise ParameterError(files.shown(name), expected="text that UTF-8 can hold", found=found) from error


def _read_lengths(content: memoryview, count: int, *, path: Path, name: str) -> tuple[list[int], int]:
    try:
        return sstable.read_varints(content, 0, count)
    except (IndexError, ValueError) as error:
        expected = f"{count} lengths of {files.shown(name)}"
        raise CorruptCheckpointError(path, expected=expected, found="malformed ones") from error


def _checksum_of_lengths(lengths: list[int]) -> int:
    checksum = 0
    for length in lengths:
        checksum = crc32c(length.to_bytes(4 if length < 1 << 32 else 8, "little"), checksum)
    return checksum
