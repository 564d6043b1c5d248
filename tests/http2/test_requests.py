"""Requests, their heads and responses: what RFC 9113 forbids of heads, and how either side ends a stream."""

from __future__ import annotations

import pytest

from paramsync.http2 import frames
from paramsync.http2.connection import ServerConnection
from paramsync.http2.errors import ErrorCode, MalformedHeadError
from paramsync.http2.events import Data, Headers, Limits, Pong, Reset
from paramsync.http2.frames import END_HEADERS, END_STREAM, PREFACE
from paramsync.http2.headers import HeaderReader
from paramsync.http2.hpack import encoded
from tests.http2 import wire
from tests.http2.wire import ANSWER, HEAD, REQUEST, TRAILERS, Frame, connected, encoded_fields


def test_rfc9113_3_4_a_connection_begins_with_settings_and_its_window() -> None:
    server = ServerConnection(
        Limits(streams=7, frame=1 << 15, stream_window=9, header_list=5, connection_window=70_000)
    )
    settings, window = wire.written(server)
    assert settings.kind == frames.SETTINGS
    assert dict(frames.SETTING.iter_unpack(settings.payload)) == {3: 7, 4: 9, 5: 1 << 15, 6: 5}
    assert window == Frame(frames.WINDOW_UPDATE, 0, 0, (70_000 - 65_535).to_bytes(4, "big"))
    assert server.output() == b""


def test_rfc9113_6_5_3_settings_are_acknowledged_and_unknown_ones_ignored() -> None:
    server = ServerConnection()
    server.output()
    assert server.receive(PREFACE + frames.settings({99: 1}), 0.0) == []
    assert server.output() == frames.SETTINGS_ACK


def test_a_request_and_its_response() -> None:
    server = connected()
    begun, content = server.receive(wire.request(1), 0.0)
    assert isinstance(begun, Headers)
    assert (begun.stream, begun.ended, begun.head.path) == (1, False, "/service/Method")
    assert content == Data(1, b"question", True)
    assert (server.last, len(server.streams)) == (1, 1)
    assert server.respond(1, ANSWER, b"answer", TRAILERS)
    assert len(server.streams) == 0
    assert wire.written(server) == [
        Frame(frames.HEADERS, END_HEADERS, 1, ANSWER),
        Frame(frames.DATA, 0, 1, b"answer"),
        Frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS),
    ]


def test_a_response_in_parts_has_a_frame_for_each() -> None:
    server = connected()
    server.receive(wire.request(1), 0.0)
    server.headers(1, ANSWER)
    assert server.data(1, b"first")
    assert server.data(1, b"")
    assert server.data(1, b"second")
    server.headers(1, TRAILERS, end=True)
    assert [(frame.kind, frame.flags, frame.payload) for frame in wire.written(server)] == [
        (frames.HEADERS, END_HEADERS, ANSWER),
        (frames.DATA, 0, b"first"),
        (frames.DATA, 0, b"second"),
        (frames.HEADERS, END_HEADERS | END_STREAM, TRAILERS),
    ]
    assert len(server.streams) == 0


def test_rfc9113_4_2_a_block_larger_than_a_frame_of_the_peer_is_continued() -> None:
    server = connected()
    server.receive(wire.request(1), 0.0)
    block = ANSWER + encoded(b"a", b"x" * 40_000)
    server.respond(1, block, b"answer", TRAILERS)
    first, second, third, *rest = wire.written(server)
    assert [first.kind, second.kind, third.kind] == [frames.HEADERS, frames.CONTINUATION, frames.CONTINUATION]
    assert [first.flags, second.flags, third.flags] == [0, 0, END_HEADERS]
    assert first.payload + second.payload + third.payload == block
    assert [frame.kind for frame in rest] == [frames.DATA, frames.HEADERS]


def test_rfc9113_4_3_a_head_may_come_in_several_frames_with_padding_and_a_priority() -> None:
    server = connected()
    begin = wire.padded((3).to_bytes(4, "big") + b"\0" + HEAD[:5], 7)
    (begun,) = server.receive(
        frames.frame(frames.HEADERS, frames.PADDED | frames.HAS_PRIORITY | END_STREAM, 1, begin)
        + frames.frame(frames.CONTINUATION, 0, 1, HEAD[5:9])
        + frames.frame(frames.CONTINUATION, 0, 1, b"")
        + frames.frame(frames.CONTINUATION, END_HEADERS, 1, HEAD[9:]),
        0.0,
    )
    assert isinstance(begun, Headers)
    assert (begun.ended, begun.head.path) == (True, "/service/Method")


def test_rfc9113_8_1_trailers_of_a_request_are_its_end() -> None:
    server = connected()
    server.receive(wire.headers(1) + wire.data(1, b"question"), 0.0)
    assert server.receive(wire.headers(1, TRAILERS, end=True), 0.0) == [Data(1, b"", True)]


def test_rfc9113_8_1_a_response_before_the_end_of_the_request_tells_the_peer_to_stop() -> None:
    server = connected()
    server.receive(wire.headers(1) + wire.data(1, b"quest"), 0.0)
    server.headers(1, TRAILERS, end=True)
    assert wire.kinds(server) == [frames.HEADERS, frames.RST_STREAM]
    assert len(server.streams) == 0
    late = wire.data(1, b"ion") + frames.window_update(1, 5) + wire.headers(1, TRAILERS, end=True)
    assert server.receive(late + frames.rst_stream(1, ErrorCode.CANCEL), 0.0) == []
    assert server.output() == b""


def test_rfc9113_5_1_late_content_opens_the_window_of_the_connection_again() -> None:
    server = connected()
    server.receive(wire.headers(1), 0.0)
    server.reset(1, ErrorCode.CANCEL)
    assert server.output() == frames.rst_stream(1, ErrorCode.CANCEL)
    opened = 0
    for _ in range(600):
        assert server.receive(wire.data(1, b"x" * 60_000), 0.0) == []
        opened += sum(int.from_bytes(frame.payload, "big") for frame in wire.written(server))
    assert opened > 600 * 60_000 - (1 << 23) - 60_000


def test_only_so_many_streams_that_ended_early_are_remembered() -> None:
    server = connected(Limits(control=1 << 30))
    for stream in range(1, 2 * 1025 + 1, 2):
        server.receive(wire.headers(stream), 0.0)
        server.reset(stream, ErrorCode.CANCEL)
    server.output()
    server.receive(wire.data(3, b"late"), 0.0)
    assert server.output() == b""
    server.receive(wire.data(1, b"late"), 0.0)
    assert server.output() == frames.rst_stream(1, ErrorCode.STREAM_CLOSED)


def test_rfc9113_5_4_2_a_stream_that_the_peer_resets_is_over_and_gets_no_reset() -> None:
    server = connected()
    server.receive(wire.request(1), 0.0)
    assert server.receive(frames.rst_stream(1, ErrorCode.CANCEL), 0.0) == [Reset(1, ErrorCode.CANCEL)]
    assert len(server.streams) == 0
    assert server.respond(1, ANSWER, b"answer", TRAILERS)
    assert server.data(1, b"answer")
    server.headers(1, TRAILERS, end=True)
    server.reset(1, ErrorCode.CANCEL)
    assert server.output() == b""


def test_rfc9113_6_7_a_ping_is_answered_and_an_answer_is_not() -> None:
    server = connected()
    assert server.receive(frames.frame(frames.PING, 0, 0, b"12345678"), 0.0) == []
    assert server.output() == frames.frame(frames.PING, frames.ACK, 0, b"12345678")
    server.ping(b"abcdefgh")
    assert server.output() == frames.frame(frames.PING, 0, 0, b"abcdefgh")
    assert server.receive(frames.frame(frames.PING, frames.ACK, 0, b"abcdefgh"), 0.0) == [Pong(b"abcdefgh")]


def test_rfc9113_4_1_unknown_types_flags_and_reserved_bits_are_ignored() -> None:
    server = connected()
    strange = frames.frame(0xFA, 0xFF, 77, b"strange") + frames.HEADER.pack(8 << 8 | frames.PING, 0xFE, 1 << 31)
    assert server.receive(strange + b"12345678" + wire.request(1), 0.0)[-1] == Data(1, b"question", True)
    assert wire.kinds(server) == [frames.PING]


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
