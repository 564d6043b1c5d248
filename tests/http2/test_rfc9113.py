"""What RFC 9113 makes an error: of one stream, or of the connection."""

from __future__ import annotations

import pytest

from paramsync.http2 import frames
from paramsync.http2.connection import Event, Headers, Limits, Lost, Reset, ServerConnection
from paramsync.http2.errors import ErrorCode
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
from paramsync.http2.headers import encoded
from tests.http2 import wire
from tests.http2.wire import ANSWER, HEAD, TRAILERS, connected

PROTOCOL, SIZE, FLOW = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.FLOW_CONTROL_ERROR
CLOSED, COMPRESSION = ErrorCode.STREAM_CLOSED, ErrorCode.COMPRESSION_ERROR
OPEN = wire.headers(1)
ENDED = wire.request(1)
RESET = OPEN + frames.rst_stream(1, ErrorCode.CANCEL)
_BEGUN = frame(HEADERS, 0, 1, HEAD[:3])

CONNECTION_ERRORS: dict[str, tuple[bytes, ErrorCode]] = {
    "a frame that is too large": (frames.HEADER.pack((1 << 16) + 1 << 8 | DATA, 0, 1), SIZE),
    "DATA of no stream": (wire.data(0, b"x"), PROTOCOL),
    "DATA of a stream that did not begin": (OPEN + wire.data(3, b"x"), PROTOCOL),
    "DATA of a server's stream": (OPEN + wire.data(2, b"x"), PROTOCOL),
    "DATA of padding alone": (OPEN + frame(DATA, PADDED, 1, b"\x05abcd"), PROTOCOL),
    "DATA that is padded and empty": (OPEN + frame(DATA, PADDED, 1, b""), PROTOCOL),
    "HEADERS of no stream": (wire.headers(0), PROTOCOL),
    "HEADERS of a server's stream": (wire.headers(2), PROTOCOL),
    "HEADERS of a stream that was left out": (wire.headers(5) + wire.headers(3), CLOSED),
    "HEADERS after a reset": (RESET + wire.headers(1), CLOSED),
    "HEADERS that are padded and empty": (frame(HEADERS, PADDED | END_HEADERS, 1, b""), PROTOCOL),
    "HEADERS of padding alone": (frame(HEADERS, PADDED | END_HEADERS, 1, b"\x04abc"), PROTOCOL),
    "HEADERS with half a priority": (frame(HEADERS, HAS_PRIORITY | END_HEADERS, 1, b"abc"), SIZE),
    "HEADERS that depend on themselves": (
        frame(HEADERS, HAS_PRIORITY | END_HEADERS, 1, b"\0\0\0\1\0" + HEAD),
        PROTOCOL,
    ),
    "HEADERS that cannot be decoded": (wire.headers(1, b"\x80"), COMPRESSION),
    "HEADERS that cannot be decoded of a refused stream": (
        wire.headers(1) + wire.headers(3) + wire.headers(5, b"\x80"),
        COMPRESSION,
    ),
    "CONTINUATION of nothing": (frame(CONTINUATION, END_HEADERS, 1, HEAD), PROTOCOL),
    "CONTINUATION after the last": (OPEN + frame(CONTINUATION, END_HEADERS, 1, b""), PROTOCOL),
    "CONTINUATION of another stream": (_BEGUN + frame(CONTINUATION, END_HEADERS, 3, HEAD[3:]), PROTOCOL),
    "a frame amid a block": (_BEGUN + frame(PING, 0, 0, bytes(8)), PROTOCOL),
    "DATA amid a block": (OPEN + frame(HEADERS, 0, 3, HEAD[:3]) + wire.data(1, b"x"), PROTOCOL),
    "HEADERS amid a block": (_BEGUN + wire.headers(3), PROTOCOL),
    "an unknown frame amid a block": (_BEGUN + frame(0xFA, 0, 1, b""), PROTOCOL),
    "PRIORITY of no stream": (frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL),
    "PRIORITY that is too short": (frame(PRIORITY, 0, 1, bytes(4)), SIZE),
    "PRIORITY of a stream on itself": (frame(PRIORITY, 0, 1, b"\0\0\0\1\0"), PROTOCOL),
    "RST_STREAM of no stream": (frame(RST_STREAM, 0, 0, bytes(4)), PROTOCOL),
    "RST_STREAM of a stream that did not begin": (OPEN + frames.rst_stream(3, ErrorCode.CANCEL), PROTOCOL),
    "RST_STREAM that is too long": (OPEN + frame(RST_STREAM, 0, 1, bytes(5)), SIZE),
    "SETTINGS of a stream": (frame(SETTINGS, 0, 1, b""), PROTOCOL),
    "SETTINGS of half a setting": (frame(SETTINGS, 0, 0, bytes(5)), SIZE),
    "SETTINGS that acknowledge and set": (frame(SETTINGS, ACK, 0, bytes(6)), SIZE),
    "SETTINGS that want something between push and none": (frames.settings({frames.ENABLE_PUSH: 2}), PROTOCOL),
    "SETTINGS of a window too large": (frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 31}), FLOW),
    "SETTINGS of frames too small": (frames.settings({frames.MAX_FRAME_SIZE: (1 << 14) - 1}), PROTOCOL),
    "SETTINGS of frames too large": (frames.settings({frames.MAX_FRAME_SIZE: 1 << 24}), PROTOCOL),
    "PUSH_PROMISE": (OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + HEAD), PROTOCOL),
    "PING of a stream": (frame(PING, 0, 1, bytes(8)), PROTOCOL),
    "PING that is too short": (frame(PING, 0, 0, bytes(7)), SIZE),
    "GOAWAY of a stream": (frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    "GOAWAY that is too short": (frame(GOAWAY, 0, 0, bytes(7)), SIZE),
    "WINDOW_UPDATE that is too short": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), SIZE),
    "WINDOW_UPDATE of a stream that did not begin": (frames.window_update(1, 1), PROTOCOL),
}

STREAM_ERRORS: dict[str, tuple[bytes, ErrorCode]] = {
    "DATA after the end": (ENDED + wire.data(1, b"x"), CLOSED),
    "HEADERS after the end": (ENDED + wire.headers(1, TRAILERS, end=True), CLOSED),
    "a request after the end": (ENDED + wire.headers(1), CLOSED),
    "HEADERS amid the content": (OPEN + wire.headers(1, TRAILERS), PROTOCOL),
    "trailers with a pseudo-header": (OPEN + wire.headers(1, encoded(b":path", b"/"), end=True), PROTOCOL),
    "a field for one connection in trailers": (OPEN + wire.headers(1, encoded(b"upgrade", b"h"), end=True), PROTOCOL),
}

UNTOLD_STREAM_ERRORS: dict[str, tuple[bytes, ErrorCode]] = {
    "a malformed head": (wire.headers(1, TRAILERS), PROTOCOL),
    "DATA after a reset": (RESET + wire.data(1, b"x"), CLOSED),
}


def _receive(server: ServerConnection, content: bytes, size: int) -> list[Event]:
    """In parts of that size."""
    parts = [content[start : start + size] for start in range(0, len(content), size)]
    return [event for part in parts for event in server.receive(part, 0.0)]


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["octets", "at once"])
@pytest.mark.parametrize(("content", "code"), CONNECTION_ERRORS.values(), ids=list(CONNECTION_ERRORS))
def test_an_error_of_the_connection_ends_it(content: bytes, code: ErrorCode, size: int) -> None:
    server = connected(Limits(streams=2))
    *_, event = _receive(server, content, size)
    assert isinstance(event, Lost)
    assert event.error.code == code
    *_, goaway = wire.written(server)
    assert goaway.kind == GOAWAY
    assert goaway.payload[:8] == server.last.to_bytes(4, "big") + code.to_bytes(4, "big")
    assert server.receive(wire.request(99) + bytes(100), 0.0) == []
    assert (server.output(), len(server.streams), server.unsent) == (b"", 0, 0)


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["octets", "at once"])
@pytest.mark.parametrize(("content", "code"), STREAM_ERRORS.values(), ids=list(STREAM_ERRORS))
def test_an_error_of_a_stream_resets_it_and_the_connection_goes_on(content: bytes, code: ErrorCode, size: int) -> None:
    server = connected()
    assert _receive(server, content, size)[-1] == Reset(1, code)
    assert server.output() == frames.rst_stream(1, code)
    _is_alive(server)


@pytest.mark.parametrize(("content", "code"), UNTOLD_STREAM_ERRORS.values(), ids=list(UNTOLD_STREAM_ERRORS))
def test_an_error_of_a_stream_that_nobody_was_told_of_is_no_event(content: bytes, code: ErrorCode) -> None:
    server = connected()
    events = server.receive(content, 0.0)
    assert Reset(1, code) not in events
    assert server.output() == frames.rst_stream(1, code)
    _is_alive(server)


def test_headers_after_a_whole_answer_end_the_connection() -> None:
    server = connected()
    server.receive(ENDED, 0.0)
    server.respond(1, ANSWER, b"answer", TRAILERS)
    (event,) = server.receive(wire.headers(1), 0.0)
    assert isinstance(event, Lost)
    assert event.error.code == CLOSED


def test_windows_of_streams_that_are_over_may_still_open() -> None:
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
def test_another_protocol_ends_the_connection_at_its_first_wrong_octet(content: bytes, size: int) -> None:
    server = ServerConnection()
    events = _receive(server, content, size)
    if PREFACE.startswith(content):
        assert events == []
    else:
        (event,) = events
        assert isinstance(event, Lost)
        assert wire.kinds(server) == [SETTINGS, WINDOW_UPDATE, GOAWAY]


@pytest.mark.parametrize("first", [frame(PING, 0, 0, bytes(8)), frames.SETTINGS_ACK, OPEN], ids=["PING", "ACK", "HEAD"])
def test_the_first_frame_is_settings(first: bytes) -> None:
    (event,) = ServerConnection().receive(PREFACE + first, 0.0)
    assert isinstance(event, Lost)
    assert event.error.code == PROTOCOL


def test_what_came_before_an_error_is_told_first() -> None:
    events = connected().receive(ENDED + frame(PING, 0, 1, bytes(8)), 0.0)
    assert [type(event).__name__ for event in events] == ["Headers", "Data", "Lost"]


def test_content_of_a_faulty_stream_is_skipped() -> None:
    server = connected()
    server.receive(wire.with_fields(1, [(b"content-length", b"3")]), 0.0)
    content = wire.data(1, b"more than three", end=True) + wire.request(3)
    assert [event for event in _receive(server, content, 7) if getattr(event, "stream", 0) == 1] == [Reset(1, PROTOCOL)]
    assert len(server.streams) == 1


def _is_alive(server: ServerConnection) -> None:
    (event,) = server.receive(wire.headers(101, end=True), 0.0)
    assert isinstance(event, Headers)
