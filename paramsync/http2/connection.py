"""One connection of an HTTP/2 server: the states of its streams, flow control both ways, limits. Does no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paramsync.http2 import frames
from paramsync.http2.errors import ErrorCode, Http2Error, MalformedHeadError, StreamError
from paramsync.http2.frames import END_HEADERS, END_STREAM, HEADER, HEADER_SIZE, LARGEST_NUMBER
from paramsync.http2.headers import Head, HeaderReader

_REMEMBERED = 1024  # streams that ended here before they ended there: what still comes for them is no error
_CONTINUATIONS = 64
_RESET_COST = 20
_REQUEST_GAIN = 10
_DECODED = 4  # a block may decode to so many times the bytes that it may have


@dataclass(frozen=True, slots=True)
class Limits:
    streams: int = 1024
    frame: int = 1 << 16
    stream_window: int = 1 << 20
    connection_window: int = 1 << 24
    header_list: int = 16 << 10  # bytes of a head; one with more is marked `too_large`
    header_block: int = 64 << 10  # bytes of a block, with its continuations
    control: int = 10_000  # frames that carry nothing: what a connection may send of them at once
    control_per_second: int = 2_000  # and how many it may go on to send


class Headers(NamedTuple):
    """A request begins."""

    stream: int
    head: Head
    ended: bool


class Data(NamedTuple):
    """A part of a request's content, not always a whole frame."""

    stream: int
    content: bytes
    ended: bool


class Reset(NamedTuple):
    """The stream is over, by the peer's will or fault."""

    stream: int
    code: int


class Sent(NamedTuple):
    """All that was queued for the stream is in the output."""

    stream: int


class Pong(NamedTuple):
    payload: bytes


class GoingAway(NamedTuple):
    """The peer will begin no more streams."""

    last: int
    code: int


class Lost(NamedTuple):
    """The connection is over: write what is in the output, and close."""

    error: Http2Error


Event = Headers | Data | Reset | Sent | Pong | GoingAway | Lost


class _Stream:
    __slots__ = ("answered", "credit", "ended", "missing", "number", "queue", "room", "waiting", "window")

    def __init__(self, number: int, missing: int, room: int, window: int) -> None:
        self.number = number
        self.ended = False  # by the peer
        self.answered = False
        self.missing = missing  # bytes that content-length promised and that did not come yet; -1: it promised none
        self.room = room  # bytes that the peer may send
        self.credit = 0  # bytes consumed of which the peer was not told
        self.window = window  # bytes that we may send
        self.queue: deque[tuple[int, bytes | memoryview]] | None = None  # flags of HEADERS, or -1 for DATA
        self.waiting = False  # for a Sent event


_DATA = -1


class ServerConnection:
    """Turns bytes of one client into events, and responses into bytes. For one thread."""

    def __init__(self, limits: Limits = Limits()) -> None:
        self.held = False
        self.last = 0
        self.unsent = 0
        self._streams: dict[int, _Stream] = {}
        self._limits = limits
        self._lost = False
        self._parts = [
            frames.settings(
                {
                    frames.MAX_CONCURRENT_STREAMS: limits.streams,
                    frames.INITIAL_WINDOW_SIZE: limits.stream_window,
                    frames.MAX_FRAME_SIZE: limits.frame,
                    frames.MAX_HEADER_LIST_SIZE: limits.header_list,
                }
            )
        ]
        self._room = frames.DEFAULT_WINDOW
        self._credit = 0
        self._lot = max(limits.connection_window, frames.DEFAULT_WINDOW) // 2
        self._grant(0, limits.connection_window - frames.DEFAULT_WINDOW)
        self._stream_lot = limits.stream_window // 2
        # of what comes
        self._rest = bytearray()
        self._wanted = len(frames.PREFACE)
        self._begun = False
        self._settled = False
        self._highest = 0
        self._most = LARGEST_NUMBER  # streams above it are refused
        self._ended: dict[int, None] = {}
        self._reader = HeaderReader(limits.header_list, limits.header_block * _DECODED)
        self._blocks: list[bytes] = []
        self._block_of = (0, False)
        self._data_of = 0
        self._data_left = 0
        self._data_ends = False
        self._padding = 0
        self._budget = float(limits.control)
        self._now = self._refilled = 0.0
        # of what goes
        self._window = frames.DEFAULT_WINDOW
        self._stream_window = frames.DEFAULT_WINDOW
        self._largest = frames.DEFAULT_FRAME
        self._ready: dict[int, _Stream] = {}  # have something queued, and a window of their own for it

    @property
    def streams(self) -> Mapping[int, object]:
        return self._streams

    # What comes --------------------------------------------------------------------------------------------------

    def receive(self, content: bytes, now: float) -> list[Event]:
        """What these bytes mean. Never raises: Lost is the last event of a connection."""
        events: list[Event] = []
        if self._lost:
            return events
        self._now = now
        if self._rest:
            self._rest += content
            if len(self._rest) < self._wanted:
                return events
            content = bytes(self._rest)
            self._rest.clear()
        try:
            self._rest += content[self._read(content, events) :]
        except Http2Error as error:
            self._lose(error)
            events.append(Lost(error))
        return events

    def _read(self, content: bytes, events: list[Event]) -> int:
        """Read whole frames, and parts of DATA. Returns where the rest begins."""
        end = len(content)
        at = 0
        if not self._begun:
            at = self._read_preface(content)
            if not at:
                return 0
        while True:
            if self._data_left or self._padding:
                at = self._read_data(content, at, end, events)
            left = end - at - HEADER_SIZE
            if left < 0:
                self._wanted = HEADER_SIZE
                return at
            head, flags, number = HEADER.unpack_from(content, at)
            kind, length, number = head & 0xFF, head >> 8, number & LARGEST_NUMBER
            self._check_frame(kind, length, flags, number)
            needed = (1 if flags & frames.PADDED else 0) if kind == frames.DATA else length
            if left < needed:
                self._wanted = HEADER_SIZE + needed
                return at
            at += HEADER_SIZE
            if kind == frames.DATA:
                padding = content[at] if needed else 0
                at += needed
                self._begin_data(number, flags, length, needed + padding, events)
            else:
                payload = content[at : at + length]
                at += length
                if kind < len(_TAKERS):
                    _TAKERS[kind](self, number, flags, payload, events)
                else:
                    self._spend(1)

    def _read_preface(self, content: bytes) -> int:
        if not frames.PREFACE.startswith(content[: len(frames.PREFACE)]):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
        self._begun = len(content) >= len(frames.PREFACE)
        return len(frames.PREFACE) if self._begun else 0

    def _check_frame(self, kind: int, length: int, flags: int, number: int) -> None:
        if length > self._limits.frame:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        if not self._settled and (kind != frames.SETTINGS or flags & frames.ACK):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if self._blocks and (kind != frames.CONTINUATION or number != self._block_of[0]):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "another frame within a block of headers")

    def _begin_data(self, number: int, flags: int, length: int, padding: int, events: list[Event]) -> None:
        content = length - padding
        if content < 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
        self._room -= length
        if self._room < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "more content than the connection's window")
        self._data_of, self._data_left = number, content
        self._padding = padding - 1 if padding else 0
        self._data_ends = bool(flags & END_STREAM)
        stream = self._streams.get(number)
        try:
            if stream is None:
                self._check_late_data(number)
            else:
                self._check_data(stream, length, content)
        except StreamError as error:
            self._break(error, events)
        if padding:
            self.consumed(number, padding)
        if not content:
            if not self._data_ends:
                self._spend(1)
            elif number in self._streams:
                self._end_received(self._streams[number], b"", events)

    def _check_data(self, stream: _Stream, length: int, content: int) -> None:
        if stream.ended:
            raise StreamError(stream.number, ErrorCode.STREAM_CLOSED, "DATA after the end")
        stream.room -= length
        if stream.room < 0:
            raise StreamError(stream.number, ErrorCode.FLOW_CONTROL_ERROR, "more content than the stream's window")
        if stream.missing >= 0:
            stream.missing -= content
            if stream.missing < 0 or (stream.missing and self._data_ends):
                raise StreamError(stream.number, ErrorCode.PROTOCOL_ERROR, "not as long as content-length says")

    def _check_late_data(self, number: int) -> None:
        if number > self._highest or not number & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"DATA of stream {number}, which is not open")
        if number not in self._ended:
            raise StreamError(number, ErrorCode.STREAM_CLOSED, "DATA after the end")

    def _read_data(self, content: bytes, at: int, end: int, events: list[Event]) -> int:
        size = min(self._data_left, end - at)
        if size:
            self._data_left -= size
            stream = self._streams.get(self._data_of)
            if stream is None:
                self.consumed(self._data_of, size)
            elif self._data_ends and not self._data_left:
                self._end_received(stream, content[at : at + size], events)
            else:
                events.append(Data(self._data_of, content[at : at + size], False))
            at += size
        skipped = min(self._padding, end - at)
        self._padding -= skipped
        return at + skipped

    def _end_received(self, stream: _Stream, content: bytes, events: list[Event]) -> None:
        stream.ended = True
        events.append(Data(stream.number, content, True))

    def _take_headers(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        if not number & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"HEADERS of stream {number}")
        if flags & (frames.PADDED | frames.HAS_PRIORITY):
            payload = _without_padding(flags, payload)
        if flags & END_HEADERS:
            self._take_block(number, bool(flags & END_STREAM), payload, events)
        else:
            self._blocks, self._block_of = [payload], (number, bool(flags & END_STREAM))

    def _take_continuation(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        if not self._blocks:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._blocks.append(payload)
        size = sum(map(len, self._blocks))
        if size > self._limits.header_block or len(self._blocks) > _CONTINUATIONS:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"a block of {len(self._blocks)} frames and {size} bytes")
        if flags & END_HEADERS:
            block, self._blocks = b"".join(self._blocks), []
            self._take_block(*self._block_of, block, events)

    def _take_block(self, number: int, ended: bool, block: bytes, events: list[Event]) -> None:
        try:
            if number > self._highest:
                self._highest = number
                self._begin_stream(number, ended, block, events)
            elif number in self._streams:
                self._end_stream(self._streams[number], ended, block, events)
            elif number in self._ended:
                self._reader.skip(block)
            else:
                raise Http2Error(ErrorCode.STREAM_CLOSED, f"HEADERS of stream {number}, which was closed")
        except StreamError as error:
            self._break(error, events)

    def _begin_stream(self, number: int, ended: bool, block: bytes, events: list[Event]) -> None:
        if number > self._most or len(self._streams) >= self._limits.streams:
            self._reader.skip(block)
            self._spend(1)
            self._parts.append(frames.rst_stream(number, ErrorCode.REFUSED_STREAM))
            self._remember(number)
            return
        self.last = number
        try:
            head = self._reader.read(block)
        except MalformedHeadError as error:
            raise StreamError(number, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if ended and head.length > 0:
            raise StreamError(number, ErrorCode.PROTOCOL_ERROR, "not as long as content-length says")
        stream = _Stream(number, head.length, self._limits.stream_window, self._stream_window)
        stream.ended = ended
        self._streams[number] = stream
        events.append(Headers(number, head, ended))

    def _end_stream(self, stream: _Stream, ended: bool, block: bytes, events: list[Event]) -> None:
        try:
            self._reader.read_trailers(block)
        except MalformedHeadError as error:
            raise StreamError(stream.number, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if stream.ended:
            raise StreamError(stream.number, ErrorCode.STREAM_CLOSED, "HEADERS after the end")
        if not ended or stream.missing > 0:
            raise StreamError(stream.number, ErrorCode.PROTOCOL_ERROR, "trailers that are not the end, or too soon")
        self._end_received(stream, b"", events)

    def _take_priority(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        _check_size(payload, 5)
        _check_stream(number)
        self._spend(1)

    def _take_rst_stream(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        _check_size(payload, 4)
        _check_stream(number)
        self._check_begun(number)
        stream = self._streams.get(number)
        self._spend(_RESET_COST if stream is not None and not stream.answered else 1)
        if stream is not None:
            self._drop(stream)
            events.append(Reset(number, *frames.WORD.unpack(payload)))

    def _take_settings(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        if number:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        self._spend(1 + len(payload) // 64)
        self._settled = True
        if flags & frames.ACK:
            return
        window = self._stream_window
        for name, value in frames.SETTING.iter_unpack(payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                if value > LARGEST_NUMBER:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value}")
                window = value
            elif name == frames.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME <= value <= frames.LARGEST_FRAME:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes")
                self._largest = value
            elif name == frames.ENABLE_PUSH and value > 1:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
        self._parts.append(frames.SETTINGS_ACK)
        if window != self._stream_window:
            self._move_windows(window, events)

    def _move_windows(self, window: int, events: list[Event]) -> None:
        self._spend(len(self._streams) // 16)
        more, self._stream_window = window - self._stream_window, window
        for stream in self._streams.values():
            stream.window += more
            if stream.window > LARGEST_NUMBER:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"stream {stream.number}: a window of {stream.window}")
            if stream.queue and stream.window > 0:
                self._ready[stream.number] = stream
        self._flush(events)

    def _take_push_promise(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE of a client")

    def _take_ping(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        _check_size(payload, 8)
        if number:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        self._spend(1)
        if flags & frames.ACK:
            events.append(Pong(payload))
        else:
            self._parts.append(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _take_goaway(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        if number:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
        self._spend(1)
        last, code = frames.WORD.unpack_from(payload)[0], frames.WORD.unpack_from(payload, 4)[0]
        events.append(GoingAway(last & LARGEST_NUMBER, code))

    def _take_window_update(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        _check_size(payload, 4)
        self._check_begun(number)
        self._spend(1)
        more = frames.WORD.unpack(payload)[0] & LARGEST_NUMBER
        if not number:
            self._window += more
            if not more or self._window > LARGEST_NUMBER:
                code = ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR
                raise Http2Error(code, f"the connection's window: {more} more")
        elif number in self._streams:
            stream = self._streams[number]
            stream.window += more
            if not more or stream.window > LARGEST_NUMBER:
                code = ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR
                self._break(StreamError(number, code, f"its window: {more} more"), events)
            elif stream.queue and stream.window > 0:
                self._ready[number] = stream
        if self._ready:
            self._flush(events)

    def _check_begun(self, number: int) -> None:
        if number and (number > self._highest or not number & 1):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"stream {number} did not begin")

    def _spend(self, cost: int) -> None:
        """Take so much off the budget, which grows by time while answers can be written."""
        if not self.held:
            gained = (self._now - self._refilled) * self._limits.control_per_second
            self._budget = min(self._limits.control, self._budget + gained)
        self._refilled = self._now
        self._budget -= cost
        if self._budget < 0:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that carry nothing, or resets")

    def _break(self, error: StreamError, events: list[Event]) -> None:
        """The peer did what ends a stream."""
        self._spend(_RESET_COST)
        self._parts.append(frames.rst_stream(error.stream, error.code))
        stream = self._streams.get(error.stream)
        if stream is not None:
            self._drop(stream)
            events.append(Reset(error.stream, error.code))
        self._remember(error.stream)

    def _lose(self, error: Http2Error) -> None:
        self._parts.append(frames.goaway(self.last, error.code, error.text[:100]))
        self._lost = True
        self._streams.clear()
        self._ready.clear()
        self.unsent = 0

    def _drop(self, stream: _Stream) -> None:
        del self._streams[stream.number]
        if stream.queue:
            self.unsent -= sum(len(content) for _, content in stream.queue)
            self._ready.pop(stream.number, None)

    def _remember(self, number: int) -> None:
        self._ended[number] = None
        if len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def consumed(self, stream: int, size: int) -> None:
        """Content of so many bytes, of Data events, was let go of; also after the stream is over."""
        self._credit += size
        if self._credit >= self._lot:
            self._grant(0, self._credit)
            self._credit = 0
        held = self._streams.get(stream)
        if held is not None and not held.ended:
            held.credit += size
            if held.credit >= self._stream_lot:
                self._parts.append(frames.window_update(stream, held.credit))
                held.room += held.credit
                held.credit = 0

    def _grant(self, stream: int, size: int) -> None:
        if size > 0:
            self._parts.append(frames.window_update(stream, size))
            self._room += size

    # What goes ---------------------------------------------------------------------------------------------------

    def output(self) -> bytes:
        """Take what is to be written."""
        content = b"".join(self._parts)
        self._parts.clear()
        return content

    def respond(self, stream: int, headers: bytes, content: bytes, trailers: bytes) -> bool:
        """A whole response. False: a part of it waits, and a Sent event will come."""
        held = self._streams.get(stream)
        if held is None:
            return True
        self.headers(stream, headers)
        self.data(stream, content)
        self.headers(stream, trailers, end=True)
        held.waiting = bool(held.queue)
        return not held.waiting

    def headers(self, stream: int, block: bytes, *, end: bool = False) -> None:
        """A block of headers or, with `end`, the last of the stream; after all that is queued."""
        held = self._streams.get(stream)
        if held is None:
            return
        held.answered = True
        if self.held or held.queue:
            self._queue(held, END_STREAM if end else 0, block)
        else:
            self._send_block(held, block, end)

    def data(self, stream: int, content: bytes) -> bool:
        """Content of a response. False: a part of what was queued waits, and a Sent event will come."""
        held = self._streams.get(stream)
        if held is None:
            return True
        if content:
            self._queue(held, _DATA, memoryview(content))
            while not self.held and held.window > 0 and self._window > 0 and held.queue:
                self._send_some(held)
            if not held.queue or held.window <= 0:
                self._ready.pop(stream, None)
        held.waiting = bool(held.queue)
        return not held.waiting

    def reset(self, stream: int, code: ErrorCode) -> None:
        """End a stream at once, and forget what is queued for it."""
        held = self._streams.get(stream)
        if held is not None:
            self._drop(held)
            self._parts.append(frames.rst_stream(stream, code))
            self._remember(stream)

    def ping(self, payload: bytes) -> None:
        self._parts.append(frames.frame(frames.PING, 0, 0, payload))

    def goaway(self, last: int, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """Tell the peer that streams above `last` are not taken up, and do so."""
        self._most = min(self._most, last)
        self._parts.append(frames.goaway(self._most, code))

    def release(self) -> list[Event]:
        """End `held`: what the windows allow goes into the output."""
        self.held = False
        events: list[Event] = []
        for stream in list(self._ready.values()):
            self._send_blocks(stream)
            self._settle(stream, events)
        self._flush(events)
        return events

    def _queue(self, stream: _Stream, flags: int, content: bytes | memoryview) -> None:
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append((flags, content))
        self.unsent += len(content)
        self._ready[stream.number] = stream

    def _flush(self, events: list[Event]) -> None:
        """One frame of each stream that waits, in turn, until a window is shut."""
        while self._ready and self._window > 0 and not self.held:
            stream = self._ready.pop(next(iter(self._ready)))
            self._send_some(stream)
            self._settle(stream, events)

    def _settle(self, stream: _Stream, events: list[Event]) -> None:
        self._ready.pop(stream.number, None)
        if stream.queue:
            if stream.window > 0:
                self._ready[stream.number] = stream
        elif stream.waiting:
            stream.waiting = False
            events.append(Sent(stream.number))

    def _send_some(self, stream: _Stream) -> None:
        """Blocks of headers that are first, a frame of content, and blocks behind it."""
        self._send_blocks(stream)
        queue = stream.queue
        if not queue:
            return
        _, content = queue[0]
        size = min(len(content), stream.window, self._window, self._largest)
        if size <= 0:
            return
        self._parts.append(frames.frame(frames.DATA, 0, stream.number, content[:size]))
        stream.window -= size
        self._window -= size
        self.unsent -= size
        if size < len(content):
            queue[0] = (_DATA, content[size:])
            return
        queue.popleft()
        self._send_blocks(stream)

    def _send_blocks(self, stream: _Stream) -> None:
        while stream.queue and stream.queue[0][0] != _DATA:
            flags, block = stream.queue.popleft()
            self.unsent -= len(block)
            self._send_block(stream, bytes(block), bool(flags))

    def _send_block(self, stream: _Stream, block: bytes, end: bool) -> None:
        self._parts.append(frames.header_block(stream.number, block, end, self._largest))
        if end:
            del self._streams[stream.number]
            self._budget += _REQUEST_GAIN
            if not stream.ended:
                self._parts.append(frames.rst_stream(stream.number, ErrorCode.NO_ERROR))
                self._remember(stream.number)


def _without_padding(flags: int, payload: bytes) -> bytes:
    start, padding = 0, 0
    if flags & frames.PADDED:
        start, padding = 1, payload[0] if payload else 0
    if flags & frames.HAS_PRIORITY:
        start += 5
    if len(payload) < start:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"HEADERS of {len(payload)} bytes")
    if start + padding > len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[start : len(payload) - padding]


def _check_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"{len(payload)} bytes in place of {size}")


def _check_stream(number: int) -> None:
    if not number:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame that needs a stream")


_Taker = Callable[[ServerConnection, int, int, bytes, list[Event]], None]
_TAKERS: tuple[_Taker, ...] = (  # by the number of the type; DATA is read apart, as it need not be whole
    ServerConnection._take_push_promise,
    ServerConnection._take_headers,
    ServerConnection._take_priority,
    ServerConnection._take_rst_stream,
    ServerConnection._take_settings,
    ServerConnection._take_push_promise,
    ServerConnection._take_ping,
    ServerConnection._take_goaway,
    ServerConnection._take_window_update,
    ServerConnection._take_continuation,
)
