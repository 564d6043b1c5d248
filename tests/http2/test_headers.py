"""Heads: what RFC 9113 forbids, and when one that came before is used again."""

from __future__ import annotations

import pytest

from paramsync.http2.errors import MalformedHeadError
from paramsync.http2.headers import HeaderReader
from paramsync.http2.hpack import encoded
from tests.http2.wire import HEAD, REQUEST, encoded_fields

LARGEST = 1000


def _reader() -> HeaderReader:
    return HeaderReader(LARGEST, 1 << 18)


def test_a_head_tells_what_is_asked_and_its_fields_in_order() -> None:
    head = _reader().read(encoded_fields([*REQUEST, (b"b", b"1"), (b"a", b"\xe9"), (b"b", b"2")]))
    assert (head.method, head.path) == ("POST", "/service/Method")
    assert head.fields == (("b", "1"), ("a", "\xe9"), ("b", "2"))
    assert head.size == sum(len(name) + len(value) + 32 for name, value in REQUEST) + 3 * 34
    assert (head.length, head.too_large, head.parsed) == (-1, False, None)


MALFORMED = {
    "8_3_1 no pseudo-header": [],
    "8_3_1 no method": REQUEST[1:],
    "8_3_1 no scheme": [*REQUEST[:1], *REQUEST[2:]],
    "8_3_1 no path": [*REQUEST[:2], *REQUEST[3:]],
    "8_3_1 an empty path": [*REQUEST[:2], (b":path", b""), *REQUEST[3:]],
    "8_3_1 an empty method": [(b":method", b""), *REQUEST[1:]],
    "8_3_1 two methods": [*REQUEST, (b":method", b"POST")],
    "8_3 a pseudo-header after a field": [*REQUEST[:3], (b"a", b"b"), REQUEST[3]],
    "8_3 a pseudo-header of responses": [*REQUEST, (b":status", b"200")],
    "8_3 an unknown pseudo-header": [*REQUEST, (b":protocol", b"websocket")],
    "8_2 an upper-case name": [*REQUEST, (b"Upper", b"case")],
    "8_2_1 an empty name": [*REQUEST, (b"", b"")],
    "8_2_1 a space in a name": [*REQUEST, (b"a b", b"c")],
    "8_2_1 a name that is not ASCII": [*REQUEST, (b"a\xe9", b"c")],
    "8_2_1 an end of line in a value": [*REQUEST, (b"a", b"b\nc")],
    "8_2_1 a zero in a value": [*REQUEST, (b"a", b"b\0c")],
    "8_2_1 a space before a value": [*REQUEST, (b"a", b" b")],
    "8_2_1 a tab after a value": [*REQUEST, (b"a", b"b\t")],
    "8_2_1 an end of line after a value": [*REQUEST, (b"a", b"b\n")],
    "8_2_1 an end of line in the path": [*REQUEST[:2], (b":path", b"/a\r\nb"), *REQUEST[3:]],
    "8_2_2 connection": [*REQUEST, (b"connection", b"close")],
    "8_2_2 transfer-encoding": [*REQUEST, (b"transfer-encoding", b"chunked")],
    "8_2_2 upgrade": [*REQUEST, (b"upgrade", b"h2c")],
    "8_2_2 keep-alive": [*REQUEST, (b"keep-alive", b"1")],
    "8_2_2 te but trailers": [*REQUEST, (b"te", b"gzip")],
    "8_1_1 a negative content-length": [*REQUEST, (b"content-length", b"-1")],
    "8_1_1 a content-length of no digit": [*REQUEST, (b"content-length", b"\xb2")],
    "8_1_1 an empty content-length": [*REQUEST, (b"content-length", b"")],
    "8_1_1 two content-lengths": [*REQUEST, (b"content-length", b"1"), (b"content-length", b"2")],
    "8_5 CONNECT with a path": [(b":method", b"CONNECT"), *REQUEST[1:]],
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=[f"rfc9113_{name.replace(' ', '_')}" for name in MALFORMED])
def test_a_head_that_rfc_9113_forbids_is_malformed(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(MalformedHeadError):
        _reader().read(encoded_fields(fields))


@pytest.mark.parametrize(
    "fields", [[(b"te", b"trailers")], [(b"content-length", b"7")], [(b"a", b"")], [(b"a", b"b c\td")]], ids=str
)
def test_a_head_that_rfc_9113_allows_is_read(fields: list[tuple[bytes, bytes]]) -> None:
    head = _reader().read(encoded_fields([*REQUEST, *fields]))
    assert head.fields == tuple((name.decode(), value.decode()) for name, value in fields)


def test_rfc9113_8_5_connect_has_an_authority_alone() -> None:
    head = _reader().read(encoded_fields([(b":method", b"CONNECT"), (b":authority", b"server:1")]))
    assert (head.method, head.path) == ("CONNECT", "")


@pytest.mark.parametrize("field", [(b":path", b"/"), (b"connection", b"close"), (b"A", b"b")], ids=str)
def test_rfc9113_8_1_trailers_are_checked_too(field: tuple[bytes, bytes]) -> None:
    reader = _reader()
    reader.read_trailers(encoded(b"a", b"b"))
    with pytest.raises(MalformedHeadError):
        reader.read_trailers(encoded(*field))


def test_the_same_block_is_read_again_once_the_table_changed() -> None:
    reader = _reader()
    reader.read(HEAD + b"\x40\x01a\x01b")
    block = HEAD + b"\xbe"
    assert reader.read(block).fields == (("a", "b"),)
    reader.read(HEAD + b"\x40\x01c\x01d")
    assert reader.read(block).fields == (("c", "d"),)


def test_rfc9113_4_3_a_malformed_head_changes_the_table_for_those_after_it() -> None:
    reader = _reader()
    reader.read(HEAD + b"\x40\x01a\x01b")
    block = HEAD + b"\xbe"
    assert reader.read(block).fields == (("a", "b"),)
    with pytest.raises(MalformedHeadError):
        reader.read(b"\x40\x01c\x01d")
    assert reader.read(block).fields == (("c", "d"),)


def test_a_table_that_was_resized_changes_what_blocks_mean() -> None:
    reader = _reader()
    reader.read(HEAD + b"\x40\x01a\x01b")
    reader.read(b"\x20" + HEAD)
    reader.read(HEAD)
    reader.skip(b"\x3f\xe1\x1f" + b"\x40\x01c\x01d")
    assert reader.read(HEAD + b"\xbe").fields == (("c", "d"),)


def test_heads_that_are_kept_for_later_are_bounded() -> None:
    reader = _reader()
    kept = {id(reader.read(HEAD + encoded(b"a", b"%d" % number))) for number in range(500)}
    assert len(kept) > 1
    assert len(reader._heads) <= 64
    for number in range(20):
        reader.read(HEAD + encoded(b"a", b"x" * 10_000 + b"%d" % number))
    assert sum(map(len, reader._heads)) <= 64 << 10
