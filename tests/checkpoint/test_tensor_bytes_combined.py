"""Checksums of pieces combine to the checksum of the whole."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from paramsync.checkpoint.tensor_bytes import combine
from paramsync.tensorbundle.sstable import mask


def test_a_known_checksum_and_its_mask() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert (mask(0), mask(0xFFFFFFFF)) == (0xA282EAD8, 0xA282EAD7)


@pytest.mark.parametrize("cut", [0, 1, 7, 64, 4095, 4096, 100_000])
def test_pieces_combine_to_the_whole(cut: int) -> None:
    content = random.Random(cut).randbytes(100_000)
    first, second = content[:cut], content[cut:]
    assert combine(crc32c(first), crc32c(second), len(second)) == crc32c(content)


def test_many_pieces_combine_in_order() -> None:
    pieces = [random.Random(size).randbytes(size) for size in (3, 1 << 20, 17, 0, 65_536)]
    whole = 0
    for piece in pieces:
        whole = combine(whole, crc32c(piece), len(piece))
    assert whole == crc32c(b"".join(pieces))
