"""Windows, both ways: what may be sent, what may come, and when more of it may."""

from __future__ import annotations

from paramsync.http2 import frames
from paramsync.http2.connection import ServerConnection
from paramsync.http2.errors import ErrorCode
from paramsync.http2.events import Data, Limits, Lost, Reset, Sent
from paramsync.http2.frames import INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE
from tests.http2 import wire
from tests.http2.wire import ANSWER, TRAILERS, connected

MANY = (1 << 31) - 1


def _asked(*streams: int, window: int = 65_535, limits: Limits | None = None) -> ServerConnection:
    server = connected(limits, {INITIAL_WINDOW_SIZE: window})
    for stream in streams:
        server.receive(wire.request(stream), 0.0)
    return server


def _contents(server: ServerConnection) -> dict[int, bytes]:
    sent: dict[int, bytes] = {}
    for frame in wire.written(server):
        if frame.kind == frames.DATA:
            sent[frame.stream] = sent.get(frame.stream, b"") + frame.payload
    return sent


def test_rfc9113_6_9_1_a_response_waits_for_the_window_of_its_stream() -> None:
    server = _asked(1, window=4)
    assert not server.respond(1, ANSWER, b"0123456789", TRAILERS)
    assert [frame.payload for frame in wire.written(server)] == [ANSWER, b"0123"]
    assert server.receive(frames.window_update(1, 5), 0.0) == []
    assert [frame.payload for frame in wire.written(server)] == [b"45678"]
    assert server.receive(frames.window_update(1, 5), 0.0) == [Sent(1)]
    assert [frame.payload for frame in wire.written(server)] == [b"9", TRAILERS]
    assert not server.streams


def test_rfc9113_6_9_1_responses_wait_for_the_window_of_the_connection_and_take_turns() -> None:
    server = _asked(1, 3, window=MANY)
    content = bytes(60_000)
    assert server.respond(1, ANSWER, content, TRAILERS)
    server.receive(wire.request(5), 0.0)
    assert not server.respond(3, ANSWER, content, TRAILERS)
    assert not server.respond(5, ANSWER, content, TRAILERS)
    assert {stream: len(sent) for stream, sent in _contents(server).items()} == {1: 60_000, 3: 5_535}
    server.receive(frames.window_update(0, 40_000), 0.0)
    assert {stream: len(sent) for stream, sent in _contents(server).items()} == {3: 16_384 + 7_232, 5: 16_384}
    assert server.receive(frames.window_update(0, MANY // 2), 0.0) == [Sent(3), Sent(5)]


def test_rfc9113_6_9_headers_alone_wait_for_no_window() -> None:
    server = _asked(1, window=0)
    server.headers(1, TRAILERS, end=True)
    assert wire.kinds(server) == [frames.HEADERS]


def test_rfc9113_6_9_2_a_window_that_shrinks_may_be_negative() -> None:
    server = _asked(1, window=10)
    assert not server.respond(1, ANSWER, b"x" * 30, TRAILERS)
    server.receive(frames.settings({INITIAL_WINDOW_SIZE: 2}), 0.0)
    server.output()
    server.receive(frames.window_update(1, 8), 0.0)
    assert server.output() == b""
    server.receive(frames.window_update(1, 1), 0.0)
    assert _contents(server) == {1: b"x"}


def test_rfc9113_6_9_2_a_window_that_settings_open_lets_content_go() -> None:
    server = _asked(1, 3, window=0)
    assert not server.respond(1, ANSWER, b"first", TRAILERS)
    assert not server.data(3, b"third")
    assert server.receive(frames.settings({INITIAL_WINDOW_SIZE: 100}), 0.0) == [Sent(1), Sent(3)]
    assert _contents(server) == {1: b"first", 3: b"third"}
    assert list(server.streams) == [3]


def test_rfc9113_4_2_frames_are_no_larger_than_the_peer_allows() -> None:
    server = _asked(1, window=MANY)
    server.receive(frames.settings({MAX_FRAME_SIZE: 20_000}), 0.0)
    server.output()
    assert server.data(1, bytes(50_000))
    assert [len(frame.payload) for frame in wire.written(server)] == [20_000, 20_000, 10_000]


def test_content_of_a_stream_that_is_over_no_longer_waits() -> None:
    server = _asked(1, 3, 5, window=1)
    for stream in (1, 3, 5):
        assert not server.respond(stream, ANSWER, b"answer", TRAILERS)
    server.output()
    server.reset(1, ErrorCode.CANCEL)
    server.receive(frames.rst_stream(3, ErrorCode.CANCEL), 0.0)
    assert server.receive(frames.window_update(1, 9) + frames.window_update(3, 9), 0.0) == []
    assert server.receive(frames.window_update(5, 9), 0.0) == [Sent(5)]


def test_nothing_but_control_frames_goes_out_while_the_connection_is_held() -> None:
    server = _asked(1, 3, 5)
    server.held = True
    assert not server.respond(1, ANSWER, b"first", TRAILERS)
    server.headers(3, ANSWER)
    assert not server.data(3, b"third")
    server.headers(5, TRAILERS, end=True)
    server.receive(frames.window_update(0, 1) + frames.frame(frames.PING, 0, 0, bytes(8)), 0.0)
    assert wire.kinds(server) == [frames.PING]
    assert server.release() == [Sent(1), Sent(3)]
    assert _contents(server) == {1: b"first", 3: b"third"}
    assert (server.held, list(server.streams)) == (False, [3])


def test_headers_go_out_at_the_release_also_where_windows_are_shut() -> None:
    server = _asked(1, 3, 5, window=MANY)
    assert not server.data(1, bytes(70_000))
    server.output()
    server.held = True
    assert not server.respond(3, ANSWER, b"third", TRAILERS)
    server.headers(5, TRAILERS, end=True)
    assert server.release() == []
    assert [(frame.stream, frame.payload) for frame in wire.written(server)] == [(3, ANSWER), (5, TRAILERS)]


def test_rfc9113_6_9_1_more_content_than_the_window_of_its_stream_resets_it() -> None:
    server = connected(Limits(stream_window=10))
    server.receive(wire.headers(1) + wire.data(1, b"01234"), 0.0)
    events = server.receive(wire.data(1, b"012345") + wire.data(1, b"x"), 0.0)
    assert events == [Reset(1, ErrorCode.FLOW_CONTROL_ERROR)]
    assert server.output() == frames.rst_stream(1, ErrorCode.FLOW_CONTROL_ERROR)


def test_rfc9113_6_9_1_more_content_than_the_window_of_the_connection_ends_it() -> None:
    server = connected(Limits(connection_window=70_000))
    server.receive(wire.headers(1) + wire.headers(3) + wire.data(1, bytes(60_000)), 0.0)
    (event,) = server.receive(wire.data(3, bytes(10_001)), 0.0)
    assert isinstance(event, Lost)
    assert event.error.code == ErrorCode.FLOW_CONTROL_ERROR


def test_windows_open_in_lots_of_half_a_window() -> None:
    server = connected(Limits(stream_window=100, connection_window=100_000))
    server.receive(wire.headers(1) + wire.data(1, bytes(90)), 0.0)
    server.consumed(1, 49)
    assert server.output() == b""
    server.consumed(1, 2)
    assert server.output() == frames.window_update(1, 51)
    assert len(server.receive(wire.data(1, bytes(61)), 0.0)) == 1
    assert server.receive(wire.data(1, b"x"), 0.0) == [Reset(1, ErrorCode.FLOW_CONTROL_ERROR)]


def test_the_window_of_the_connection_opens_by_what_was_consumed_of_all_streams() -> None:
    server = connected(Limits(connection_window=100_000))
    for stream in (1, 3):
        server.receive(wire.headers(stream) + wire.data(stream, bytes(30_000), end=True), 0.0)
    server.consumed(1, 30_000)
    server.reset(3, ErrorCode.CANCEL)
    server.output()
    server.consumed(3, 30_000)
    assert server.output() == frames.window_update(0, 60_000)


def test_rfc9113_6_1_padding_counts_in_windows_and_opens_them_again() -> None:
    server = connected(Limits(stream_window=200, connection_window=65_535))
    server.receive(wire.headers(1), 0.0)
    received = b""
    for _ in range(300):
        frame = frames.frame(frames.DATA, frames.PADDED, 1, wire.padded(b"x", 99))
        for event in server.receive(frame, 0.0):
            assert isinstance(event, Data)
            received += event.content
            server.consumed(1, len(event.content))
    assert received == b"x" * 300
    opened = {0: 0, 1: 0}
    for update in wire.written(server):
        opened[update.stream] += int.from_bytes(update.payload, "big")
    assert opened[1] > 300 * 101 - 200
