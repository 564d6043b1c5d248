"""How a checkpoint stores a tensor of strings: lengths as varints, the masked crc32c of the lengths, then the bytes.

Both checksums see each length as a fixed number of 4 bytes (8 where it needs them), not as it is stored.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paramsync import files, table
from paramsync.checksums import crc32c, mask
from paramsync.errors import CorruptCheckpointError, ParameterError

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

_CHECKSUM = 4  # bytes


def encode(array: Array, name: str) -> tuple[bytes, int]:
    """The bytes to store and their checksum, which is not masked."""
    values = [_encoded(value, name) for value in array.reshape(-1).tolist()]
    lengths = [len(value) for value in values]
    checksum = _checksum_of_lengths(lengths)
    stored = mask(checksum).to_bytes(_CHECKSUM, "little")
    body = b"".join(values)
    return b"".join(map(table.varint, lengths)) + stored + body, crc32c(body, crc32c(stored, checksum))


def decode(content: memoryview, shape: tuple[int, ...], *, path: Path, name: str) -> tuple[Array, int]:
    """The strings and the checksum of all that is stored, which is not masked.

    Raises CorruptCheckpointError where the lengths are not those of what follows.
    """
    count = int(np.prod(shape, dtype=object))
    lengths, position = _read_lengths(content, count, path=path, name=name)
    checksum = _checksum_of_lengths(lengths)
    start = position + _CHECKSUM
    stored = bytes(content[position:start])
    if stored != mask(checksum).to_bytes(_CHECKSUM, "little"):
        raise CorruptCheckpointError(
            path, expected=f"lengths of {files.shown(name)} that fit their checksum", found="others"
        )
    if start + sum(lengths) != len(content):
        found = f"{len(content) - start}"
        raise CorruptCheckpointError(
            path, expected=f"{sum(lengths)} bytes of strings in {files.shown(name)}", found=found
        )
    array = np.empty(count, object)
    checksum = crc32c(content[start:], crc32c(stored, checksum))
    for at, length in enumerate(lengths):
        array[at] = bytes(content[start : start + length])
        start += length
    return array.reshape(shape), checksum


def least(count: int) -> int:
    """How many bytes so many strings take at least."""
    return count + _CHECKSUM


def _encoded(value: object, name: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise ParameterError(files.shown(name), expected="bytes in an array of objects", found=type(value).__name__)


def _read_lengths(content: memoryview, count: int, *, path: Path, name: str) -> tuple[list[int], int]:
    lengths = []
    position = 0
    try:
        for _ in range(count):
            length, position = table.read_varint(content, position)
            lengths.append(length)
    except (IndexError, ValueError) as error:
        raise CorruptCheckpointError(
            path, expected=f"{count} lengths of {files.shown(name)}", found="malformed ones"
        ) from error
    return lengths, position


def _checksum_of_lengths(lengths: list[int]) -> int:
    checksum = 0
    for length in lengths:
        checksum = crc32c(length.to_bytes(4 if length < 1 << 32 else 8, "little"), checksum)
    return checksum
