"""Bytes of strangers mean the same however they are cut and are refused as by the package h2, which is a client too."""

from __future__ import annotations

import random
import re
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as some

from paramsync.http2 import frames
from paramsync.http2.connection import ServerConnection
from paramsync.http2.events import Data, Event, Headers, Limits, Lost, Reset, Sent
from tests.hostile.fuzz import http2
from tests.http2 import wire
from tests.http2.wire import ANSWER, REQUEST, TRAILERS

CORPUS = sorted((Path(http2.__file__).parent / "corpus").iterdir())
LIMITS = Limits(streams=100, frame=1 << 14, stream_window=65_535, connection_window=65_535, control=1 << 30)
DIFFERENCES = {
    "RFC 9113, 3.4: the first frame is SETTINGS, which h2 does not ask for": "in place of type 4",
    "RFC 9113, 6.4: RST_STREAM of an idle stream is an error, which h2 ignores once another began": "did not begin",
    "RFC 9113, 6.9: the reserved bit of WINDOW_UPDATE is ignored, h2 refuses it": "non-compliant data",
    "RFC 8441: ENABLE_CONNECT_PROTOCOL is unknown to us, h2 checks its value": "Setting 8 has invalid value",
    "RFC 9113, 8.3.1: :authority may be left out, h2 wants it or host": "does not have an :authority",
    "ENHANCE_YOUR_CALM: limits of ours that h2 has not": "ENHANCE_YOUR_CALM",
}
"""Where one of both refuses alone: the reason, and the text that it gives."""

CUTS = some.sampled_from([1, 5, 9, 100])
WHOLE = 1 << 20


@settings(max_examples=150)
@given(
    content=some.binary(max_size=300), cut=CUTS, first=some.sampled_from([b"", frames.PREFACE, http2.beginnings()[-1]])
)
def test_any_bytes_mean_the_same_however_they_are_cut(content: bytes, cut: int, first: bytes) -> None:
    _means_the_same(first + content, cut)


@settings(max_examples=150)
@given(beginning=some.sampled_from(http2.beginnings()), seed=some.integers(0, 1 << 32), cut=CUTS)
def test_faulty_conversations_mean_the_same_however_they_are_cut(beginning: bytes, seed: int, cut: int) -> None:
    _means_the_same(http2.mutated(beginning, random.Random(seed)), cut)


@pytest.mark.parametrize("beginning", http2.beginnings())
def test_what_is_mutated_is_right_before(beginning: bytes) -> None:
    events = http2.connect(beginning, WHOLE, answered=False)
    assert "Lost" not in {type(event).__name__ for event in events}


def _means_the_same(content: bytes, cut: int) -> None:
    whole = http2.described(http2.connect(content, WHOLE, answered=False))
    assert http2.described(http2.connect(content, cut, answered=False)) == whole
    http2.connect(content, cut, answered=True)


def ours(content: bytes) -> str:
    """Why we refuse a conversation, or one of its streams; empty if all of it is accepted."""
    server = ServerConnection(LIMITS)
    events = server.receive(content, 0.0)
    while server.has_more:
        events += server.receive(b"", 0.0)
    lost = [str(event.error) for event in events if isinstance(event, Lost)]
    resets = [f"reset {frame.stream}" for frame in wire.written(server) if frame.kind == frames.RST_STREAM]
    return " ".join(lost + resets)


def theirs(content: bytes) -> str:
    """The same by the package h2."""
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
    server.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: LIMITS.streams})
    server.initiate_connection()
    server.data_to_send()
    try:
        server.receive_data(content)
    except h2.exceptions.ProtocolError as error:
        return str(error) or type(error).__name__
    resets = [frame for frame in wire.split(server.data_to_send()) if frame.kind == frames.RST_STREAM]
    return " ".join(f"reset {frame.stream}" for frame in resets)


def agree(content: bytes) -> None:
    we, they = ours(content), theirs(content)
    assert bool(we) == bool(they) or re.search("|".join(DIFFERENCES.values()), we or they), (we, they, content)


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.name)
def test_the_corpus_of_the_fuzzer_means_the_same_however_it_is_cut_and_is_refused_as_by_h2(file: Path) -> None:
    content = file.read_bytes()
    _means_the_same(content, 7)
    if http2.is_whole(content):
        agree(content)


def test_faulty_conversations_are_refused_where_the_package_h2_refuses_them(whole: bool) -> None:
    for seed in range(100_000 if whole else 2_000):
        chance = random.Random(seed)
        content = http2.mutated(chance.choice(http2.beginnings()), chance)
        if http2.is_whole(content):
            agree(content)


SMALL = Limits(frame=1 << 14, stream_window=3_000, connection_window=70_000)
sizes = some.integers(0, 100) | some.integers(0, 80_000)
windows = some.sampled_from([1_000, 65_535, 1 << 20])


class Pair:
    """A client and a server whose bytes are cut as somebody decides."""

    def __init__(self, limits: Limits, cut: int, window: int) -> None:
        self.server = ServerConnection(limits)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.client.initiate_connection()
        self.resize_windows(window)
        self.cut = cut
        self.responses: dict[int, bytes] = {}
        self.requests: dict[int, bytes] = {}
        self.begun: dict[int, dict[str, str]] = {}
        self.ended: set[int] = set()
        self.asked: set[int] = set()
        self.sent: set[int] = set()
        self.trailers: dict[int, list[tuple[bytes, bytes]]] = {}

    def resize_windows(self, window: int) -> None:
        self.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})

    def exchange(self) -> None:
        """Have both read what the other wrote, until neither writes any more."""
        while self._to_server(self.client.data_to_send()) + self._to_client(self.server.output()):
            pass

    def _to_server(self, content: bytes) -> int:
        for start in range(0, len(content), self.cut):
            for event in self.server.receive(content[start : start + self.cut], 0.0):
                self._told(event)
        return len(content)

    def _told(self, event: Event) -> None:
        assert not isinstance(event, Lost | Reset), event
        if isinstance(event, Headers):
            self.begun[event.stream] = dict(event.head.fields)
            self.requests[event.stream] = b""
        elif isinstance(event, Data):
            self.requests[event.stream] += event.content
            self.server.consumed(event.stream, len(event.content))
        elif isinstance(event, Sent):
            self.sent.add(event.stream)
        if isinstance(event, Headers | Data) and event.ended:
            self.asked.add(event.stream)

    def _to_client(self, content: bytes) -> int:
        for event in self.client.receive_data(content):
            if isinstance(event, h2.events.DataReceived):
                self.responses[event.stream_id] = self.responses.get(event.stream_id, b"") + event.data
                if event.flow_controlled_length:
                    self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived):
                self.trailers[event.stream_id] = list(event.headers)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
        return len(content)

    def ask(self, stream: int, content: bytes, padding: int | None, timeout: bytes) -> None:
        self.client.send_headers(stream, [*REQUEST, (b"grpc-timeout", timeout)])
        left = memoryview(content)
        while left:
            room = min(self.client.local_flow_control_window(stream), self.client.max_outbound_frame_size)
            size = min(len(left), room - (0 if padding is None else padding + 1))
            if size <= 0:
                before = room
                self.exchange()
                assert self.client.local_flow_control_window(stream) > before, "no window opens"
                continue
            self.client.send_data(stream, bytes(left[:size]), pad_length=padding)
            left = left[size:]
        self.client.end_stream(stream)


@settings(max_examples=60)
@given(
    asked=some.lists(some.tuples(sizes, sizes, some.none() | some.integers(0, 255)), min_size=1, max_size=4),
    cut=some.sampled_from([1 << 20, 16_384, 1_000, 77]),
    window=windows,
    limits=some.sampled_from([Limits(), SMALL]),
    held=some.booleans(),
    changed=some.none() | windows,
)
def test_requests_and_responses_arrive_as_they_were_sent(
    asked: list[tuple[int, int, int | None]], cut: int, window: int, limits: Limits, held: bool, changed: int | None
) -> None:
    pair = Pair(limits, cut, window)
    pair.exchange()
    contents = {}
    for number, (size, answer_size, padding) in enumerate(asked):
        stream = 2 * number + 1
        contents[stream] = (b"%d" % number * size)[:size], (b"a%d" % number * answer_size)[:answer_size]
        pair.ask(stream, contents[stream][0], padding, b"%du" % number)
    pair.exchange()
    assert pair.requests == {stream: request for stream, (request, _) in contents.items()}
    assert pair.asked == contents.keys()
    assert [fields["grpc-timeout"] for fields in pair.begun.values()] == [f"{number}u" for number in range(len(asked))]
    pair.server.held = held
    done = {stream for stream, (_, answer) in contents.items() if pair.server.respond(stream, ANSWER, answer, TRAILERS)}
    if changed is not None:
        pair.resize_windows(changed)
    pair.exchange()
    for event in pair.server.release():
        pair._told(event)
    pair.exchange()
    assert pair.ended == contents.keys()
    assert {stream: pair.responses.get(stream, b"") for stream in contents} == {
        stream: answer for stream, (_, answer) in contents.items()
    }
    assert pair.trailers == {stream: [(b"grpc-status", b"0")] for stream in contents}
    assert pair.sent | done == contents.keys()
    assert not pair.sent & done
    assert not pair.server.streams


@settings(max_examples=30)
@given(some.lists(some.binary(max_size=40_000), min_size=1, max_size=6), windows, some.sampled_from([1 << 20, 77]))
def test_a_stream_of_messages_arrives_in_order(messages: list[bytes], window: int, cut: int) -> None:
    pair = Pair(Limits(), cut, window)
    pair.client.send_headers(1, REQUEST, end_stream=True)
    pair.exchange()
    pair.server.headers(1, ANSWER)
    for message in messages:
        if not pair.server.data(1, message):
            pair.exchange()
            assert pair.sent == {1}
            pair.sent.clear()
    pair.server.headers(1, TRAILERS, end=True)
    pair.exchange()
    assert pair.responses.get(1, b"") == b"".join(messages)
    assert pair.ended == {1}
