"""Masks crc32c as checkpoints store it, and combines the checksums of pieces that were read one by one."""

from __future__ import annotations

from functools import lru_cache

from crc32c import crc32c

__all__ = ["combine", "crc32c", "mask"]

_POLYNOMIAL = 0x82F63B78  # of crc32c, its bits reversed
_Operator = tuple[tuple[int, ...], ...]  # a linear map over 32 bits, as the image of each value of each byte


def mask(crc: int) -> int:
    """The stored form of a checksum: a checksum over bytes that contain their own checksum would be weak."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def combine(first: int, second: int, length: int) -> int:
    """The checksum of two adjacent pieces, from the checksum of each and the length of the second in bytes."""
    for bit in range(length.bit_length()):
        if length >> bit & 1:
            first = _apply(_zeros(bit), first)
    return first ^ second


@lru_cache(maxsize=64)
def _zeros(power: int) -> _Operator:
    """The map that appending 2 ** power zero bytes applies to a checksum."""
    if power == 0:
        one_bit = _operator([_POLYNOMIAL, *(1 << bit for bit in range(31))])
        return _twice(_twice(_twice(one_bit)))
    return _twice(_zeros(power - 1))


def _operator(bits: list[int]) -> _Operator:
    """The map with these images of the single bits."""
    tables = []
    for byte in range(0, 32, 8):
        values = [0]
        for bit in bits[byte : byte + 8]:
            values += [bit ^ value for value in values]
        tables.append(tuple(values))
    return tuple(tables)


def _twice(operator: _Operator) -> _Operator:
    return _operator([_apply(operator, _apply(operator, 1 << bit)) for bit in range(32)])


def _apply(operator: _Operator, crc: int) -> int:
    first, second, third, fourth = operator
    return first[crc & 0xFF] ^ second[crc >> 8 & 0xFF] ^ third[crc >> 16 & 0xFF] ^ fourth[crc >> 24]
