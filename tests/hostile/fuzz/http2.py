"""What is fuzzed: bytes of a client of HTTP/2, and what an application does meanwhile, read from the same bytes."""

from __future__ import annotations

import random
import struct

from paramsync.http2 import frames
from paramsync.http2.connection import ServerConnection
from paramsync.http2.errors import ErrorCode
from paramsync.http2.events import Data, Event, Headers, Limits, Lost, Reset, Sent
from tests.http2 import wire

LIMITS = Limits(
    streams=4, frame=1 << 14, stream_window=1 << 15, connection_window=1 << 17, header_block=1 << 12, control=300
)
BEGINNING = frames.PREFACE + frames.settings({})
_MOST_UNASKED = 300 * 100  # bytes written that no response is: the budget's frames, and the beginning


def connect(content: bytes, cut: int, *, answered: bool) -> list[Event]:
    """The events of these bytes, in parts of at most `cut`. Data that belongs together is joined."""
    server = ServerConnection(LIMITS)
    events: list[Event] = []
    written = 0
    for start in range(0, len(content), cut):
        told = server.receive(content[start : start + cut], 0.0)
        while server.has_more:
            told += server.receive(b"", 0.0)
        assert len(server.streams) <= LIMITS.streams
        assert len(server._rest) <= LIMITS.frame + frames.HEADER_SIZE + cut
        for event in told:
            if answered:
                written += _answer(server, event)
        events += told
        written -= sum(len(frame.payload) + frames.HEADER_SIZE for frame in wire.written(server))
        assert written + _MOST_UNASKED >= 0
    lost = [number for number, event in enumerate(events) if isinstance(event, Lost)]
    assert lost in ([], [len(events) - 1])
    _check(events)
    return joined(events)


def joined(events: list[Event]) -> list[Event]:
    """Data that follows Data of its stream becomes one; errors compare by their text."""
    found: list[Event] = []
    for event in events:
        before = found[-1] if found else None
        if isinstance(event, Data) and isinstance(before, Data) and before.stream == event.stream:
            found[-1] = Data(event.stream, before.content + event.content, event.ended)
        else:
            found.append(event)
    return found


def described(events: list[Event]) -> list[object]:
    """Events as values that can be compared."""
    return [
        str(event.error)
        if isinstance(event, Lost)
        else (event.stream, event.head.fields, event.ended)
        if isinstance(event, Headers)
        else event
        for event in events
    ]


def _check(events: list[Event]) -> None:
    """A stream begins once, is heard of while it is open, and ends once."""
    open_streams: set[int] = set()
    begun = 0
    for event in events:
        if isinstance(event, Headers):
            assert event.stream > begun
            assert event.stream & 1
            begun = event.stream
            open_streams |= set() if event.ended else {event.stream}
        elif isinstance(event, Data):
            assert event.stream in open_streams
            open_streams -= {event.stream} if event.ended else set()
        elif isinstance(event, Reset):
            assert event.stream <= begun
            open_streams.discard(event.stream)


def _answer(server: ServerConnection, event: Event) -> int:
    """Does what an application might. Returns the bytes that it may have written by that."""
    if isinstance(event, Data):
        server.consumed(event.stream, len(event.content))
    if isinstance(event, Sent) or not isinstance(event, Headers | Data):
        return 0
    ways = event.stream // 2 % 4
    if ways == 0 and event.ended:
        server.respond(event.stream, wire.ANSWER, bytes(70_000), wire.TRAILERS)
    elif ways == 1 and isinstance(event, Headers):
        server.headers(event.stream, wire.TRAILERS, end=True)
    elif ways == 2:
        server.headers(event.stream, wire.ANSWER)
        server.data(event.stream, bytes(100))
    elif ways == 3 and isinstance(event, Data):
        server.reset(event.stream, ErrorCode.CANCEL)
    return 100_000


def beginnings() -> list[bytes]:
    """Conversations of clients that keep to the protocol."""
    settings = frames.settings({frames.INITIAL_WINDOW_SIZE: 100})
    pings = frames.frame(frames.PING, 0, 0, bytes(8)) * 3
    whole = [wire.request(stream) for stream in (1, 3, 5, 7)]
    continued = frames.frame(frames.HEADERS, 0, 9, wire.HEAD[:9]) + frames.frame(
        frames.CONTINUATION, frames.END_HEADERS, 9, wire.HEAD[9:]
    )
    padding = frames.frame(frames.DATA, frames.PADDED, 9, wire.padded(b"question", 5))
    windows = frames.window_update(0, 100_000) + frames.window_update(1, 100_000)
    resets = frames.rst_stream(9, ErrorCode.CANCEL)
    indexed = wire.headers(11, wire.HEAD + b"\x40\x01a\x81\x1f") + wire.headers(13, wire.HEAD + b"\xbe", end=True)
    trailers = wire.data(11, b"question") + wire.headers(11, wire.TRAILERS, end=True)
    parts = [*whole, settings, pings, continued, padding, windows, resets, indexed, trailers]
    return [frames.PREFACE + settings + b"".join(parts[:number]) for number in range(1, len(parts) + 1)]


def is_whole(content: bytes) -> bool:
    """Whether these bytes are a preface and frames, the last of them whole."""
    try:
        return content.startswith(frames.PREFACE) and bool(wire.split(content.removeprefix(frames.PREFACE)))
    except (AssertionError, struct.error):
        return False


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The frames of a conversation, of which some are lost, said twice, moved, or changed by an octet."""
    said = wire.split(content.removeprefix(frames.PREFACE))
    parts = [frames.frame(*frame) for frame in said]
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(parts))
        way = chance.randrange(5)
        if way == 0:
            parts.insert(chance.randrange(len(parts)), parts[at])
        elif way == 1 and len(parts) > 1:
            del parts[at]
        elif way == 2:
            parts.insert(chance.randrange(len(parts)), parts.pop(at))
        elif way == 3:
            parts[at] *= chance.choice((2, 40, 400))
        else:
            changed = bytearray(parts[at])
            changed[chance.randrange(min(len(changed), chance.choice((5, 9, 1000))))] = chance.randrange(256)
            parts[at] = bytes(changed)
    return frames.PREFACE + b"".join(parts)
