"""Limits that keep one client from taking more than its share: streams, headers, frames that carry nothing, GOAWAY."""

from __future__ import annotations

import pytest

from paramsync.http2 import frames
from paramsync.http2.connection import ServerConnection
from paramsync.http2.errors import ErrorCode
from paramsync.http2.events import Event, Headers, Limits, Lost, Reset
from paramsync.http2.frames import CONTINUATION, HEADERS, PING, frame
from paramsync.http2.hpack import encoded
from tests.http2 import wire
from tests.http2.wire import ANSWER, HEAD, TRAILERS, connected

CALM = ErrorCode.ENHANCE_YOUR_CALM
BUDGET = 100
RATE = 10


def _lost(events: list[Event]) -> ErrorCode | None:
    return events[-1].error.code if events and isinstance(events[-1], Lost) else None


def _small(**more: int) -> ServerConnection:
    """Its budget holds 100 frames, and 10 more a second."""
    server = connected(Limits(control=BUDGET + 1, control_per_second=RATE, **more))
    server.receive(b"", 0.0)
    return server


def test_rfc9113_5_1_2_a_stream_too_many_is_refused_and_what_comes_of_it_is_ignored() -> None:
    server = connected(Limits(streams=2))
    assert len(server.receive(wire.headers(1) + wire.headers(3), 0.0)) == 2
    assert server.receive(wire.request(5), 0.0) == []
    assert server.output() == frames.rst_stream(5, ErrorCode.REFUSED_STREAM)
    assert (server.last, len(server.streams)) == (3, 2)
    server.reset(1, ErrorCode.CANCEL)
    assert len(server.receive(wire.request(7), 0.0)) == 2


def test_rfc9113_4_3_a_refused_head_changes_the_table_for_those_after_it() -> None:
    server = connected(Limits(streams=1))
    server.receive(wire.headers(1), 0.0)
    server.receive(wire.headers(3, HEAD + b"\x40\x01a\x01b"), 0.0)
    server.reset(1, ErrorCode.CANCEL)
    (begun,) = server.receive(wire.headers(5, HEAD + b"\xbe"), 0.0)
    assert isinstance(begun, Headers)
    assert begun.head.fields == (("a", "b"),)


def test_a_head_that_is_too_large_is_told_of() -> None:
    server = connected(Limits(header_list=1000))
    small, large = server.receive(wire.headers(1) + wire.headers(3, HEAD + encoded(b"a", b"x" * 1000)), 0.0)
    assert isinstance(small, Headers)
    assert isinstance(large, Headers)
    assert (small.head.too_large, large.head.too_large) == (False, True)


SIZED = Limits(header_block=1000)
TOO_MUCH = {  # blocks of headers that end their connection
    "bytes in two frames": frame(HEADERS, 0, 1, bytes(600)) + frame(CONTINUATION, 0, 1, bytes(600)),
    "bytes in one frame": wire.headers(1, HEAD + encoded(b"a", b"x" * 1000)),
    "frames": frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"") * 64,
    "decoded bytes": (
        wire.headers(1, HEAD + b"\x40" + encoded(b"a", b"x" * 700)[1:]) + wire.headers(3, HEAD + b"\xbe" * 2)
    ),
    "changes of the table": wire.headers(1, b"\x20" * 40 + HEAD),
}


@pytest.mark.parametrize("content", TOO_MUCH.values(), ids=list(TOO_MUCH))
def test_headers_of_too_much_end_the_connection(content: bytes) -> None:
    assert _lost(connected(SIZED).receive(content, 0.0)) == CALM


CHURN = HEAD + b"\x40\x01a\x01b" * 400
EXPENSIVE = {  # what goes on for ever, and how much of it is decoded, or read, before others have their turn
    "frames": (frame(PING, 0, 0, bytes(8)) * 5000, 256),
    "DATA of 16 bytes": (wire.data(1, bytes(16)) * 5000, 256),
    "table churn": (b"".join(wire.headers(stream, CHURN) for stream in range(3, 103, 2)), 2),
    "new heads": (
        b"".join(wire.headers(stream, HEAD + encoded(b"a", b"%d" % stream)) for stream in range(3, 1003, 2)), 43,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", EXPENSIVE)
def test_what_is_much_work_is_read_in_turns_and_means_the_same(kind: str) -> None:
    content, most = EXPENSIVE[kind]
    server, whole = (connected(Limits(control=1 << 20)) for _ in range(2))
    for one in (server, whole):
        one.receive(wire.headers(1), 0.0)
        one.output()
    expected: list[Event] = []
    for sent in wire.split(content):
        expected += whole.receive(frame(sent.kind, sent.flags, sent.stream, sent.payload), 0.0)
    found = server.receive(content, 0.0)
    turns, output = 1, server.output()
    while server.has_more:
        events = server.receive(b"", 0.0)
        part = server.output()
        assert max(len(events), len(wire.split(part))) <= most
        found, output, turns = found + events, output + part, turns + 1
    assert turns > 1
    assert [(type(event), event[0]) for event in found] == [(type(event), event[0]) for event in expected]
    assert output == whole.output()


def test_a_turn_that_ends_within_a_frame_goes_on_with_it() -> None:
    server = connected(Limits(control=1 << 20))
    ping = frame(PING, 0, 0, b"12345678")
    content = ping * 2000 + wire.request(1)
    answered = 0
    for at in range(0, len(content), 20_001):
        server.receive(content[at : at + 20_001], 0.0)
        while server.has_more:
            server.receive(b"", 0.0)
        answered += wire.kinds(server).count(PING)
    assert (answered, list(server.streams)) == (2000, [1])


NOTHINGS = {
    "PING": frame(PING, 0, 0, bytes(8)),
    "an answer to a ping": frame(PING, frames.ACK, 0, bytes(8)),
    "SETTINGS": frames.settings({}),
    "acknowledged SETTINGS": frames.SETTINGS_ACK,
    "PRIORITY": frame(frames.PRIORITY, 0, 9, bytes(5)),
    "WINDOW_UPDATE of the connection": frames.window_update(0, 1),
    "WINDOW_UPDATE of a stream": frames.window_update(1, 1),
    "RST_STREAM of a stream that is over": frames.rst_stream(3, ErrorCode.CANCEL),
    "empty DATA": wire.data(1, b""),
    "a tiny part of DATA": wire.data(1, b"x"),
    "DATA of padding alone": frame(frames.DATA, frames.PADDED, 1, wire.padded(b"", 9)),
    "an unknown frame": frame(0xFA, 0, 0, b"x"),
    "GOAWAY": frame(frames.GOAWAY, 0, 0, bytes(8)),
}


@pytest.mark.parametrize("nothing", NOTHINGS.values(), ids=list(NOTHINGS))
def test_frames_that_carry_nothing_spend_a_budget_that_grows_by_time(nothing: bytes) -> None:
    server = _small()
    server.receive(wire.headers(1) + wire.headers(3), 0.0)
    server.reset(3, ErrorCode.CANCEL)
    assert _lost(server.receive(nothing * BUDGET, 0.0)) is None
    assert _lost(server.receive(nothing * 2 * RATE, 2.0)) is None
    assert _lost(server.receive(nothing, 2.0)) == CALM


def test_answers_add_to_the_budget() -> None:
    server = _small()
    server.receive(NOTHINGS["PING"] * BUDGET, 0.0)
    server.receive(wire.request(1) + wire.request(3), 0.0)
    server.respond(1, ANSWER, b"answer", TRAILERS)
    server.headers(3, TRAILERS, end=True)
    assert _lost(server.receive(NOTHINGS["PING"] * 20, 0.0)) is None
    assert _lost(server.receive(NOTHINGS["PING"], 0.0)) == CALM


def test_time_adds_nothing_to_the_budget_while_the_connection_is_held() -> None:
    server = _small()
    server.held = True
    server.receive(NOTHINGS["PING"] * BUDGET, 1e9)
    assert _lost(server.receive(NOTHINGS["PING"], 2e9)) == CALM


def test_requests_that_are_taken_back_spend_five_times_as_much() -> None:
    server = _small()
    for number in range(BUDGET // 5):
        stream = 2 * number + 1
        again = wire.request(stream) + frames.rst_stream(stream, ErrorCode.CANCEL)
        assert server.receive(again, 0.0)[-1] == Reset(stream, ErrorCode.CANCEL)
    last = 2 * BUDGET + 1
    assert _lost(server.receive(wire.request(last) + frames.rst_stream(last, ErrorCode.CANCEL), 0.0)) == CALM


def test_an_answer_that_is_taken_back_spends_little() -> None:
    server = _small()
    for number in range(BUDGET):
        stream = 2 * number + 1
        server.receive(wire.headers(stream), 0.0)
        server.headers(stream, ANSWER)
        assert _lost(server.receive(frames.rst_stream(stream, ErrorCode.CANCEL), 0.0)) is None


def test_streams_that_end_by_faults_spend_as_much_as_those_taken_back() -> None:
    server = _small()
    for number in range(BUDGET // 5):
        server.receive(wire.headers(2 * number + 1, TRAILERS), 0.0)
    assert _lost(server.receive(wire.headers(2 * BUDGET + 1, TRAILERS), 0.0)) == CALM


def test_settings_that_change_many_windows_spend_more() -> None:
    server = _small()
    for stream in range(1, 2 * 161, 2):
        server.receive(wire.headers(stream), 0.0)
    for window in range(1, 10):
        assert _lost(server.receive(frames.settings({frames.INITIAL_WINDOW_SIZE: window}), 0.0)) is None
    assert _lost(server.receive(frames.settings({frames.INITIAL_WINDOW_SIZE: 99}), 0.0)) == CALM


def test_rfc9113_6_8_a_graceful_end_refuses_nothing_at_first_and_what_is_above_its_last_then() -> None:
    server = connected()
    server.receive(wire.request(1), 0.0)
    server.goaway(2**31 - 1)
    assert len(server.receive(wire.request(3), 0.0)) == 2
    server.goaway(server.last)
    assert server.receive(wire.request(5), 0.0) == []
    assert (server.last, list(server.streams)) == (3, [1, 3])
    assert [frame.payload[:4] for frame in wire.written(server)] == [
        b"\x7f\xff\xff\xff",
        b"\0\0\0\3",
        ErrorCode.REFUSED_STREAM.to_bytes(4, "big"),
    ]
    assert server.respond(3, ANSWER, b"answer", TRAILERS)


def test_rfc9113_6_8_the_last_stream_of_a_goaway_never_rises() -> None:
    server = connected()
    server.goaway(1)
    server.goaway(2**31 - 1, ErrorCode.INTERNAL_ERROR)
    assert [frame.payload for frame in wire.written(server)] == [b"\0\0\0\1\0\0\0\0", b"\0\0\0\1\0\0\0\2"]
