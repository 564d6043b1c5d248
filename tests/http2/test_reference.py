"""The package h2 as the client, both ends in memory: whatever the sizes, the windows and the cuts, bytes arrive."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as some

from paramsync.http2.connection import ServerConnection
from paramsync.http2.events import Data, Event, Headers, Limits, Lost, Reset, Sent
from tests.http2.wire import ANSWER, REQUEST, TRAILERS

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
        self.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})

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
