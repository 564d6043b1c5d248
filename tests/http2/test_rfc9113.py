"""What RFC 9113 makes an error of one stream or of the connection: a test for each MUST, named by its section.

`pytest -k rfc9113_6_5` runs those of section 6.5 and below. Sections whose MUSTs are no errors are in the other modules
under the same kind of name.
"""

from __future__ import annotations

import pytest

from paramsync.http2 import frames
from paramsync.http2.connection import ServerConnection
from paramsync.http2.errors import ErrorCode
from paramsync.http2.events import Event, Headers, Limits, Lost, Reset
from paramsync.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from paramsync.http2.hpack import encoded
from tests.http2 import wire
from tests.http2.wire import ANSWER, HEAD, TRAILERS, connected

PROTOCOL, SIZE, FLOW = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.FLOW_CONTROL_ERROR
CLOSED, COMPRESSION = ErrorCode.STREAM_CLOSED, ErrorCode.COMPRESSION_ERROR
OPEN = wire.headers(1)
PROMISED = wire.with_fields(1, [(b"content-length", b"8")])
MOST_OF_WINDOW = [frames.window_update(stream, frames.LARGEST_NUMBER - frames.DEFAULT_WINDOW) for stream in (0, 1)]
ENDED = wire.request(1)
RESET = OPEN + frames.rst_stream(1, ErrorCode.CANCEL)
_BEGUN = frame(HEADERS, 0, 1, HEAD[:3])

CONNECTION_ERRORS: dict[str, tuple[bytes, ErrorCode]] = {
    "4_2 a frame beyond our largest": (frames.HEADER.pack((1 << 16) + 1 << 8 | DATA, 0, 1), SIZE),
    "6_1 DATA of no stream": (wire.data(0, b"x"), PROTOCOL),
    "5_1 DATA of an idle stream": (OPEN + wire.data(3, b"x"), PROTOCOL),
    "5_1_1 DATA of a stream with an even number": (OPEN + wire.data(2, b"x"), PROTOCOL),
    "6_1 DATA whose padding is longer than the frame": (OPEN + frame(DATA, PADDED, 1, b"\x05abcd"), PROTOCOL),
    "6_1 DATA without its length of padding": (OPEN + frame(DATA, PADDED, 1, b""), PROTOCOL),
    "6_2 HEADERS of no stream": (wire.headers(0), PROTOCOL),
    "5_1_1 HEADERS of a stream with an even number": (wire.headers(2), PROTOCOL),
    "5_1_1 stream numbers must increase": (wire.headers(5) + wire.headers(3), CLOSED),
    "5_1 HEADERS of a stream that was reset": (RESET + wire.headers(1), CLOSED),
    "6_2 HEADERS without their length of padding": (frame(HEADERS, PADDED | END_HEADERS, 1, b""), PROTOCOL),
    "6_2 HEADERS whose padding is longer than the frame": (
        frame(HEADERS, PADDED | END_HEADERS, 1, b"\x04abc"),
        PROTOCOL,
    ),
    "6_2 HEADERS with half a priority": (frame(HEADERS, HAS_PRIORITY | END_HEADERS, 1, b"abc"), SIZE),
    "5_3 HEADERS of a stream that depends on itself": (
        frame(HEADERS, HAS_PRIORITY | END_HEADERS, 1, b"\0\0\0\1\0" + HEAD),
        PROTOCOL,
    ),
    "4_3 HEADERS that cannot be decoded": (wire.headers(1, b"\x80"), COMPRESSION),
    "4_3 HEADERS of a refused stream that cannot be decoded": (
        wire.headers(1) + wire.headers(3) + wire.headers(5, b"\x80"),
        COMPRESSION,
    ),
    "6_10 CONTINUATION of nothing": (frame(CONTINUATION, END_HEADERS, 1, HEAD), PROTOCOL),
    "6_10 CONTINUATION after the last": (OPEN + frame(CONTINUATION, END_HEADERS, 1, b""), PROTOCOL),
    "6_10 CONTINUATION of another stream": (_BEGUN + frame(CONTINUATION, END_HEADERS, 3, HEAD[3:]), PROTOCOL),
    "6_2 PING amid a block": (_BEGUN + frame(PING, 0, 0, bytes(8)), PROTOCOL),
    "6_2 DATA amid a block": (OPEN + frame(HEADERS, 0, 3, HEAD[:3]) + wire.data(1, b"x"), PROTOCOL),
    "6_2 HEADERS amid a block": (_BEGUN + wire.headers(3), PROTOCOL),
    "5_5 an unknown frame amid a block": (_BEGUN + frame(0xFA, 0, 1, b""), PROTOCOL),
    "6_3 PRIORITY of no stream": (frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL),
    "6_3 PRIORITY of four octets": (frame(PRIORITY, 0, 1, bytes(4)), SIZE),
    "5_3 PRIORITY of a stream on itself": (frame(PRIORITY, 0, 1, b"\0\0\0\1\0"), PROTOCOL),
    "6_4 RST_STREAM of no stream": (frame(RST_STREAM, 0, 0, bytes(4)), PROTOCOL),
    "6_4 RST_STREAM of an idle stream": (OPEN + frames.rst_stream(3, ErrorCode.CANCEL), PROTOCOL),
    "6_4 RST_STREAM of five octets": (OPEN + frame(RST_STREAM, 0, 1, bytes(5)), SIZE),
    "6_5 SETTINGS of a stream": (frame(SETTINGS, 0, 1, b""), PROTOCOL),
    "6_5 SETTINGS of five octets": (frame(SETTINGS, 0, 0, bytes(5)), SIZE),
    "6_5 an acknowledgement with settings": (frame(SETTINGS, ACK, 0, bytes(6)), SIZE),
    "6_5_2 ENABLE_PUSH of 2": (frames.settings({frames.ENABLE_PUSH: 2}), PROTOCOL),
    "6_5_2 an initial window of 2^31": (frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 31}), FLOW),
    "6_5_2 frames below 2^14": (frames.settings({frames.MAX_FRAME_SIZE: (1 << 14) - 1}), PROTOCOL),
    "6_5_2 frames of 2^24": (frames.settings({frames.MAX_FRAME_SIZE: 1 << 24}), PROTOCOL),
    "8_4 PUSH_PROMISE of a client": (OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + HEAD), PROTOCOL),
    "6_7 PING of a stream": (frame(PING, 0, 1, bytes(8)), PROTOCOL),
    "6_7 PING of seven octets": (frame(PING, 0, 0, bytes(7)), SIZE),
    "6_8 GOAWAY of a stream": (frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    "4_2 GOAWAY of seven octets": (frame(GOAWAY, 0, 0, bytes(7)), SIZE),
    "6_9 WINDOW_UPDATE of three octets": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), SIZE),
    "5_1 WINDOW_UPDATE of an idle stream": (frames.window_update(1, 1), PROTOCOL),
    "6_9 the connection's window grows by nothing": (frames.window_update(0, 0), PROTOCOL),
    "6_9_1 the connection's window grows beyond its most": (MOST_OF_WINDOW[0] + frames.window_update(0, 1), FLOW),
    "6_9_2 settings that take a stream's window beyond its most": (
        OPEN + MOST_OF_WINDOW[1] + frames.settings({frames.INITIAL_WINDOW_SIZE: frames.DEFAULT_WINDOW + 1}),
        FLOW,
    ),
}

STREAM_ERRORS: dict[str, tuple[bytes, ErrorCode]] = {
    "5_1 DATA after the end": (ENDED + wire.data(1, b"x"), CLOSED),
    "5_1 HEADERS after the end": (ENDED + wire.headers(1, TRAILERS, end=True), CLOSED),
    "5_1 a request after the end": (ENDED + wire.headers(1), CLOSED),
    "8_1 trailers that are not the end": (OPEN + wire.headers(1, TRAILERS), PROTOCOL),
    "8_1 a pseudo-header in trailers": (OPEN + wire.headers(1, encoded(b":path", b"/"), end=True), PROTOCOL),
    "6_9 a window grows by nothing": (OPEN + frames.window_update(1, 0), PROTOCOL),
    "6_9_1 a window grows beyond its most": (OPEN + MOST_OF_WINDOW[1] + frames.window_update(1, 1), FLOW),
    "8_1_1 more content than promised": (PROMISED + wire.data(1, b"questions"), PROTOCOL),
    "8_1_1 less content than promised": (PROMISED + wire.data(1, b"quest", end=True), PROTOCOL),
    "8_1_1 no content, though promised": (PROMISED + wire.data(1, b"", end=True), PROTOCOL),
    "8_1_1 trailers in place of promised content": (PROMISED + wire.headers(1, TRAILERS, end=True), PROTOCOL),
    "8_2_2 a field of connections in trailers": (OPEN + wire.headers(1, encoded(b"upgrade", b"h"), end=True), PROTOCOL),
}

UNTOLD_STREAM_ERRORS: dict[str, tuple[bytes, ErrorCode]] = {
    "8_1_1 a malformed head": (wire.headers(1, TRAILERS), PROTOCOL),
    "8_1_1 a head that promises content and ends": (
        wire.with_fields(1, [(b"content-length", b"8")], end=True),
        PROTOCOL,
    ),
    "5_1 DATA of a stream that was reset": (RESET + wire.data(1, b"x"), CLOSED),
}


def named(cases: dict[str, tuple[bytes, ErrorCode]]) -> list[str]:
    return [f"rfc9113_{name.replace(' ', '_')}" for name in cases]


def _receive(server: ServerConnection, content: bytes, size: int) -> list[Event]:
    """In parts of that size."""
    parts = [content[start : start + size] for start in range(0, len(content), size)]
    return [event for part in parts for event in server.receive(part, 0.0)]


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["octets", "at once"])
@pytest.mark.parametrize(("content", "code"), CONNECTION_ERRORS.values(), ids=named(CONNECTION_ERRORS))
def test_an_error_of_the_connection_ends_it(content: bytes, code: ErrorCode, size: int) -> None:
    server = connected(Limits(streams=2))
    *_, event = _receive(server, content, size)
    assert isinstance(event, Lost)
    assert event.error.code == code
    *_, goaway = wire.written(server)
    assert goaway.kind == GOAWAY
    assert goaway.payload[:8] == server.last.to_bytes(4, "big") + code.to_bytes(4, "big")
    assert server.receive(wire.request(99) + bytes(100), 0.0) == []
    assert (server.output(), len(server.streams)) == (b"", 0)


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["octets", "at once"])
@pytest.mark.parametrize(("content", "code"), STREAM_ERRORS.values(), ids=named(STREAM_ERRORS))
def test_an_error_of_a_stream_resets_it_and_the_connection_goes_on(content: bytes, code: ErrorCode, size: int) -> None:
    server = connected()
    assert _receive(server, content, size)[-1] == Reset(1, code)
    assert server.output() == frames.rst_stream(1, code)
    _is_alive(server)


@pytest.mark.parametrize(("content", "code"), UNTOLD_STREAM_ERRORS.values(), ids=named(UNTOLD_STREAM_ERRORS))
def test_an_error_of_a_stream_that_nobody_was_told_of_is_no_event(content: bytes, code: ErrorCode) -> None:
    server = connected()
    events = server.receive(content, 0.0)
    assert Reset(1, code) not in events
    assert server.output() == frames.rst_stream(1, code)
    _is_alive(server)


def test_rfc9113_5_1_headers_after_a_whole_answer_end_the_connection() -> None:
    server = connected()
    server.receive(ENDED, 0.0)
    server.respond(1, ANSWER, b"answer", TRAILERS)
    (event,) = server.receive(wire.headers(1), 0.0)
    assert isinstance(event, Lost)
    assert event.error.code == CLOSED


def test_rfc9113_5_1_windows_of_streams_that_are_over_may_still_open() -> None:
    server = connected()
    server.receive(RESET, 0.0)
    assert server.receive(frames.window_update(1, 1) + frames.rst_stream(1, ErrorCode.CANCEL), 0.0) == []
    assert server.output() == b""


@pytest.mark.parametrize(
    "content",
    [b"GET / HTTP/1.1\r\n", b"P", PREFACE[:-1] + b"X", b"\x16\x03\x01"],
    ids=["HTTP/1.1", "cut off", "the last octet", "TLS"],
)
@pytest.mark.parametrize("size", [1, 1 << 20], ids=["octets", "at once"])
def test_rfc9113_3_4_another_protocol_ends_the_connection_at_its_first_wrong_octet(content: bytes, size: int) -> None:
    server = ServerConnection()
    events = _receive(server, content, size)
    if PREFACE.startswith(content):
        assert events == []
    else:
        (event,) = events
        assert isinstance(event, Lost)
        assert wire.kinds(server) == [SETTINGS, WINDOW_UPDATE, GOAWAY]


@pytest.mark.parametrize("first", [frame(PING, 0, 0, bytes(8)), frames.SETTINGS_ACK, OPEN], ids=["PING", "ACK", "HEAD"])
def test_rfc9113_3_4_the_first_frame_is_settings(first: bytes) -> None:
    (event,) = ServerConnection().receive(PREFACE + first, 0.0)
    assert isinstance(event, Lost)
    assert event.error.code == PROTOCOL


def test_content_of_a_faulty_stream_is_skipped() -> None:
    server = connected()
    server.receive(wire.with_fields(1, [(b"content-length", b"3")]), 0.0)
    content = wire.data(1, b"more than three", end=True) + wire.request(3)
    assert [event for event in _receive(server, content, 7) if getattr(event, "stream", 0) == 1] == [Reset(1, PROTOCOL)]
    assert len(server.streams) == 1


def _is_alive(server: ServerConnection) -> None:
    (event,) = server.receive(wire.headers(101, end=True), 0.0)
    assert isinstance(event, Headers)
