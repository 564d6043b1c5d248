"""HPACK against RFC 7541, a test for each MUST named by its section, and against the package `hpack`."""

from __future__ import annotations

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given, settings
from hypothesis import strategies as some

from paramsync.http2.errors import ErrorCode, Http2Error
from paramsync.http2.hpack import Decoder, encoded
from tests.http2.wire import encoded_fields

MOST = 1 << 18
quick = settings(max_examples=100)
names = some.sampled_from([b"grpc-timeout", b":path", b"te", b"user-agent", b"x"]) | some.binary(min_size=1, max_size=9)
fields = some.lists(some.tuples(names, some.binary(max_size=60) | some.just(b"z" * 3000)), max_size=12)


def _read(decoder: Decoder, block: bytes) -> list[tuple[bytes, bytes]]:
    return [(field.name.encode("latin-1"), field.value.encode("latin-1")) for field in decoder.decode(block)]


@quick
@given(some.lists(some.tuples(fields, some.booleans(), some.sampled_from([0, 100, 4096])), max_size=4))
def test_blocks_of_another_encoder_mean_the_same_fields(
    blocks: list[tuple[list[tuple[bytes, bytes]], bool, int]],
) -> None:
    encoder, decoder = hpack.Encoder(), Decoder(MOST)
    for section, huffman, table_size in blocks:
        encoder.header_table_size = table_size
        assert _read(decoder, encoder.encode(section, huffman=huffman)) == section


@quick
@given(some.lists(some.binary(max_size=40), max_size=3))
def test_blocks_that_the_package_refuses_are_refused_and_others_mean_the_same(blocks: list[bytes]) -> None:
    theirs, ours = hpack.Decoder(MOST), Decoder(MOST)
    for block in blocks:
        try:
            expected = [(bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True)]
        except hpack.HPACKError:
            with pytest.raises(Http2Error):
                ours.decode(block)
            return
        assert _read(ours, block) == expected


@quick
@given(some.binary(max_size=200))
def test_rfc7541_5_2_every_octet_has_its_huffman_code(content: bytes) -> None:
    coded = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(content)
    literal = bytearray(encoded(b"x", coded))
    literal[3] |= 0x80
    assert _read(Decoder(MOST), bytes(literal)) == [(b"x", content)]


@quick
@given(fields)
def test_another_decoder_reads_what_is_encoded_and_remembers_nothing(section: list[tuple[bytes, bytes]]) -> None:
    decoder = hpack.Decoder(MOST)
    assert [(bytes(name), bytes(value)) for name, value in decoder.decode(encoded_fields(section), raw=True)] == section
    assert not decoder.header_table.dynamic_entries


def test_rfc7541_6_2_2_a_name_of_the_static_table_is_encoded_as_its_index() -> None:
    assert encoded(b"content-type", b"a") == b"\x0f\x10\x01a"
    assert encoded(b"grpc-status", b"0") == b"\x00\x0bgrpc-status\x010"


UNDECODABLE = {
    "6_1 index 0": b"\x80",
    "2_3_3 an index beyond the table": b"\xbe",
    "5_1 an integer of seven octets": b"\xff\x80\x80\x80\x80\x80\x01",
    "5_1 an integer that is cut off": b"\x7f",
    "5_2 a name that is cut off": b"\x40\x05abc",
    "5_2 a value that is cut off": b"\x40\x01a\x05b",
    "6_2 a literal that is cut off": b"\x00",
    "4_2 a size of the table after a field": b"\x88\x20",
    "6_3 a size of the table beyond ours": b"\x3f\xe2\x1f",
    "5_2 padding of zeros": b"\x00\x01a\x81\x00",
    "5_2 padding of more than seven bits": b"\x00\x01a\x82\x1f\xff",
    "5_2 the code of the end of a string": b"\x00\x01a\x84\xff\xff\xff\xff",
}


@pytest.mark.parametrize(
    "block", UNDECODABLE.values(), ids=[f"rfc7541_{name.replace(' ', '_')}" for name in UNDECODABLE]
)
def test_a_block_that_cannot_be_decoded_ends_the_connection(block: bytes) -> None:
    with pytest.raises(Http2Error) as raised:
        Decoder(MOST).decode(block)
    assert raised.value.code == ErrorCode.COMPRESSION_ERROR


def test_rfc7541_4_4_a_field_larger_than_the_table_empties_it() -> None:
    decoder = Decoder(MOST)
    decoder.decode(_indexed(b"a", b"b"))
    decoder.decode(_indexed(b"a", bytes(4096)))
    with pytest.raises(Http2Error):
        decoder.decode(b"\xbe")


def _indexed(name: bytes, value: bytes) -> bytes:
    """A literal that the table remembers."""
    return b"\x40" + encoded(name, value)[1:]
