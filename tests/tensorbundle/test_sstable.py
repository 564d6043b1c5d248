"""The table codec on its own: what is written is read, and nothing else is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramsync.errors import CorruptCheckpointError
from paramsync.tensorbundle import sstable
from tests.hostile.fuzz.mutate import assembled
from tests.support.compressed import assembled as assembled_compressed
from tests.support.compressed import compressed, of_snappy

WHERE = Path("a.index")


def records(count: int) -> list[tuple[bytes, bytes]]:
    return [(b"layer/%06d/kernel" % number, b"value %d" % number) for number in range(count)]


def read(content: bytes) -> list[tuple[bytes, bytes]]:
    return list(sstable.read(content, path=WHERE))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 33, 40_000])
def test_what_is_written_is_read(count: int) -> None:
    assert read(sstable.write(records(count))) == records(count)


@pytest.mark.parametrize("keys", [(b"b", b"a"), (b"a", b"a")])
def test_keys_are_written_in_ascending_order_only(keys: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="expected one after"):
        sstable.write((key, b"") for key in keys)


def test_a_table_cut_anywhere_is_refused() -> None:
    content = sstable.write(records(40))
    for length in range(len(content)):
        with pytest.raises(CorruptCheckpointError):
            read(content[:length])


def test_every_flipped_bit_is_found_or_does_not_matter() -> None:
    content = sstable.write(records(20))
    unread = 0
    for bit in range(len(content) * 8):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = read(bytes(changed))
        except CorruptCheckpointError:
            continue
        assert found == records(20), f"bit {bit}"
        unread += 1
    assert unread < 64 * 8  # the metaindex, its handle and the padding of the footer


def block(content: bytes, restarts: int = 0) -> bytes:
    """A table of one block of records with these bytes, its checksums right."""
    return assembled([content + restarts.to_bytes(4, "little")])


EXPANDING = [sstable.varint(50_000 + number) + b"\1\0k" for number in range(1000)]


def test_the_hostile_tables_below_are_well_formed_but_for_one_thing() -> None:
    assert read(block(b"\0\1\1ab" + b"\1\1\1cd")) == [(b"a", b"b"), (b"ac", b"d")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(block(b"\1\1\1ab"), "shares at most 0 bytes", id="shares with nothing"),
        pytest.param(block(b"\0\1\2ab"), "ends by 5", id="ends outside the block"),
        pytest.param(block(b"\0" + b"\xff" * 9 + b"\1\0a"), "a record that shares", id="length of 64 bits"),
        pytest.param(block(b"\0" + b"\xff" * 10 + b"\1\0a"), "expected a record", id="length above 64 bits"),
        pytest.param(block(b"\0\1"), "expected a record", id="ends within a length"),
        pytest.param(block(b"\0\1\0a\0\1\0a"), "a key after b'a'", id="the same key twice"),
        pytest.param(block(b"\0\1\0b\0\1\0a"), "a key after b'b'", id="keys descend"),
        pytest.param(block(b"\0\1\0a", restarts=1 << 30), "1073741824 restarts", id="restarts outside the block"),
        pytest.param(assembled([b"ab"]), "its count of restarts", id="no count of restarts"),
        pytest.param(
            assembled([b"\0\1\0a\0\0\0\0"], kind=2), "type 0 or 1 .snappy., found .* 2", id="compressed by zlib"
        ),
        pytest.param(
            block(b"\0\xd0\x86\x03\0" + b"k" * 50_000 + b"".join(EXPANDING)),
            "together",
            id="keys that expand",
        ),
    ],
)
def test_hostile_tables_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=message):
        read(content)


@pytest.mark.parametrize("count", [0, 1, 33, 40_000])
def test_blocks_compressed_by_snappy_are_read(count: int) -> None:
    content = sstable.write(records(count))
    smaller = compressed(content)
    assert read(smaller) == records(count)
    assert len(smaller) < max(len(content), 200)


SMALL = b"\0\1\0a\0\0\0\0"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        pytest.param(b"", "compressed by snappy at 0, found a malformed one", id="nothing"),
        pytest.param(b"\xff" * 20, "compressed by snappy at 0, found a malformed one", id="no size"),
        pytest.param(sstable.varint(8), "compressed by snappy at 0, found", id="a size alone"),
        pytest.param(sstable.varint(1 << 40) + b"a" * 20, "at most", id="a terabyte"),
        pytest.param(sstable.varint(60 << 20) + b"a" * 20, "at most", id="more than so few bytes can become"),
        pytest.param(sstable.varint(7) + of_snappy(SMALL)[1:], "malformed", id="a smaller size than it has"),
        pytest.param(sstable.varint(9) + of_snappy(SMALL)[1:], "malformed", id="a larger size than it has"),
        pytest.param(of_snappy(SMALL) + b"\0", "malformed", id="more behind its end"),
    ],
)
def test_what_snappy_would_not_write_is_refused(block: bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=message):
        read(assembled_compressed([block]))
