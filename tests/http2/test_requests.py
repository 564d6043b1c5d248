"""Requests and responses of well-behaved clients, and how either side ends a stream."""

from __future__ import annotations

from paramsync.http2 import frames
from paramsync.http2.connection import ServerConnection
from paramsync.http2.errors import ErrorCode
from paramsync.http2.events import Data, Headers, Limits, Pong, Reset
from paramsync.http2.frames import END_HEADERS, END_STREAM, PREFACE
from paramsync.http2.hpack import encoded
from tests.http2 import wire
from tests.http2.wire import ANSWER, HEAD, TRAILERS, Frame, connected


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
