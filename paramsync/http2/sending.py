"""The streams of a connection, sending within the peer's windows, and a budget that answers refill."""

from __future__ import annotations

from collections import deque

from paramsync.http2 import frames
from paramsync.http2.errors import ErrorCode, Http2Error, StreamError
from paramsync.http2.events import Event, Sent
from paramsync.http2.frames import DATA, END_HEADERS, END_STREAM, HEADER, HEADERS, LARGEST_NUMBER

_REMEMBERED = 1024  # how many streams `_left_early` remembers
_END = -1  # stands in place of a frame type for HEADERS that end the stream


class Stream:
    """An open or half-closed stream."""

    __slots__ = ("answered", "credit", "ended", "finished", "missing", "number", "queue", "room", "waiting", "window")

    def __init__(self, number: int, ended: bool, missing: int, room: int, window: int) -> None:
        self.number = number
        self.ended = ended  # whether the peer has sent everything
        self.missing = missing  # bytes of content-length still to come; -1: there is no content-length
        self.room = room  # bytes that the peer may still send
        self.credit = 0  # consumed bytes not yet added to `room`
        self.window = window  # bytes that we may send; negative after SETTINGS that shrink it
        self.answered = False
        self.finished = False  # the last headers are sent or queued
        self.waiting = False  # whether a Sent event is due
        self.queue: deque[tuple[int, bytes | memoryview]] | None = None  # frame type or _END, and payload


class Budget:
    """A budget for frames that carry nothing, such as pings. Time and answers refill it, up to a maximum."""

    def __init__(self, most: int, per_second: int) -> None:
        self._most = most
        self._per_second = per_second
        self._left = float(most)
        self._counted = 0.0  # time of the last `spend`

    def earn(self, gain: int) -> None:
        self._left = min(self._left + gain, self._most)

    def spend(self, cost: int, now: float, *, grows: bool) -> None:
        """Take the cost from the budget. With `grows`, time refills it first. Raises Http2Error if nothing is left."""
        if grows:
            self._left = min(self._left + (now - self._counted) * self._per_second, self._most)
        self._counted = now
        self._left -= cost
        if self._left < 0:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that carry nothing, or requests taken back")


class Sender:
    """The sending half of a connection: output, and queues that wait for the peer's windows or for `release`.

    Streams take turns and send one frame in each turn. A method that is called for an ended stream does nothing.
    """

    __slots__ = (
        "_answers", "_initial_window", "_largest", "_left_early", "_parts", "_ready", "_window", "held", "streams",
    )  # fmt: skip

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        """Open streams by number."""
        self.held = False
        """The application sets this while the kernel accepts no bytes.

        Responses then wait in queues, and time does not refill the budget.
        """
        self._parts: list[bytes] = []
        self._initial_window = frames.DEFAULT_WINDOW
        self._largest = frames.DEFAULT_FRAME
        self._answers = 0
        self._window = frames.DEFAULT_WINDOW
        self._ready: dict[int, Stream] = {}  # streams that have a queue and an open window
        self._left_early: dict[int, None] = {}  # streams that we ended first: the peer may still send frames for them

    # For the application ----------------------------------------------------------------------------------------

    @property
    def takes_answers(self) -> bool:
        """Whether the peer's initial window allows content on a new stream."""
        return self._initial_window > 0

    def release(self) -> list[Event]:
        """End `held`, and move queued bytes to the output as far as the windows allow."""
        events: list[Event] = []
        self.held = False
        for stream in list(self._ready.values()):
            self._send_blocks(stream)
            self._settle(stream, events)
        self._flush(events)
        return events

    def output(self) -> bytes:
        """Return the bytes to write, and empty the output."""
        parts = self._parts
        content = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return content

    def respond(self, number: int, headers: bytes, content: bytes, trailers: bytes) -> bool:
        """Send a whole response. Returns False if a part has to wait; a Sent event then follows."""
        stream = self.streams.get(number)
        if stream is None:
            return True
        size = len(content)
        at_once = 0 < size <= min(stream.window, self._window, self._largest) and not (self.held or stream.queue)
        if at_once and len(headers) <= self._largest >= len(trailers):
            parts = (
                HEADER.pack(len(headers) << 8 | HEADERS, END_HEADERS, number),
                headers,
                HEADER.pack(size << 8, 0, number),
                content,
                HEADER.pack(len(trailers) << 8 | HEADERS, END_HEADERS | END_STREAM, number),
                trailers,
            )
            self._parts.append(b"".join(parts))
            self._window -= size
            self._end(stream)
            return True
        self.headers(number, headers)
        self.data(number, content)
        self.headers(number, trailers, end=True)
        stream.waiting = bool(stream.queue)
        return not stream.waiting

    def headers(self, number: int, block: bytes, *, end: bool = False) -> None:
        """Send a block of headers after all queued content. With `end`, the headers end the stream."""
        stream = self.streams.get(number)
        if stream is None or stream.finished:
            return
        stream.answered = True
        stream.finished = end
        self._queue(stream, _END if end else HEADERS, block)

    def data(self, number: int, content: bytes) -> bool:
        """Send content. Returns False if a part of the queue has to wait; a Sent event then follows."""
        stream = self.streams.get(number)
        if stream is None:
            return True
        if content and not stream.finished:
            self._queue(stream, DATA, memoryview(content))
        stream.waiting = bool(stream.queue)
        return not stream.waiting

    def reset(self, number: int, code: ErrorCode) -> None:
        """End a stream at once, without sending queued content."""
        stream = self.streams.get(number)
        if stream is not None:
            self._parts.append(frames.rst_stream(number, code))
            self._drop(stream)
            if not stream.ended:
                self._leave_early(number)

    def ping(self, payload: bytes) -> None:
        self._parts.append(frames.frame(frames.PING, 0, 0, payload))

    # Internals --------------------------------------------------------------------------------------------------

    def _flush(self, events: list[Event]) -> None:
        """Move as much from the queues to the output as the windows allow."""
        while self._ready and self._window > 0 and not self.held:
            stream = self._ready.pop(next(iter(self._ready)))
            self._send_turn(stream)
            self._settle(stream, events)

    def _grow(self, more: int) -> None:
        """Open the connection's window. Raises Http2Error."""
        self._window += more
        if not more or self._window > LARGEST_NUMBER:
            raise Http2Error(*_bad_window(more))

    def _grow_stream(self, stream: Stream, more: int) -> None:
        """Open a stream's window. Raises StreamError."""
        stream.window += more
        if not more or stream.window > LARGEST_NUMBER:
            raise StreamError(stream.number, *_bad_window(more))
        self._offer(stream)

    def _change_initial_window(self, window: int) -> None:
        """Change the initial window. The windows of open streams change by the difference. Raises Http2Error."""
        more, self._initial_window = window - self._initial_window, window
        for stream in self.streams.values():
            stream.window += more
            if stream.window > LARGEST_NUMBER:
                raise Http2Error(*_bad_window(more))
            self._offer(stream)

    def _drop(self, stream: Stream) -> None:
        """Forget a stream and its queue."""
        del self.streams[stream.number]
        self._ready.pop(stream.number, None)

    def _drop_all(self) -> None:
        self.streams.clear()
        self._ready.clear()

    def _leave_early(self, number: int) -> None:
        self._left_early[number] = None
        if len(self._left_early) > _REMEMBERED:
            del self._left_early[next(iter(self._left_early))]

    def _was_left_early(self, number: int) -> bool:
        """Return whether we ended this stream first. The peer may then send late frames for it."""
        return number in self._left_early

    def _queue(self, stream: Stream, kind: int, content: bytes | memoryview) -> None:
        """Queue content. Unless `held`, send as much of the stream's queue as the windows allow."""
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append((kind, content))
        if not self.held:
            self._send_blocks(stream)
            while stream.queue and stream.window > 0 and self._window > 0:
                self._send_turn(stream)
        self._offer(stream)

    def _offer(self, stream: Stream) -> None:
        if stream.queue and (stream.window > 0 or self.held):
            self._ready[stream.number] = stream

    def _settle(self, stream: Stream, events: list[Event]) -> None:
        """End a stream's turn: queue the stream again if it can send more, and emit Sent if the event is due."""
        self._ready.pop(stream.number, None)
        self._offer(stream)
        if stream.waiting and not stream.queue:
            stream.waiting = False
            events.append(Sent(stream.number))

    def _send_turn(self, stream: Stream) -> None:
        """Send the headers at the front, a frame of content, and the headers after it."""
        self._send_blocks(stream)
        if not stream.queue:
            return
        content = stream.queue[0][1]
        size = min(len(content), stream.window, self._window, self._largest)
        if size <= 0:
            return
        self._parts.append(frames.frame(DATA, 0, stream.number, content[:size]))
        stream.window -= size
        self._window -= size
        if size < len(content):
            stream.queue[0] = (DATA, content[size:])
        else:
            stream.queue.popleft()
            self._send_blocks(stream)

    def _send_blocks(self, stream: Stream) -> None:
        while stream.queue and stream.queue[0][0] != DATA:
            kind, block = stream.queue.popleft()
            self._parts.append(frames.header_block(stream.number, bytes(block), kind == _END, self._largest))
            if kind == _END:
                self._end(stream)

    def _end(self, stream: Stream) -> None:
        del self.streams[stream.number]
        self._answers += 1
        if not stream.ended:
            self._parts.append(frames.rst_stream(stream.number, ErrorCode.NO_ERROR))
            self._leave_early(stream.number)


def _bad_window(more: int) -> tuple[ErrorCode, str]:
    code = ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR
    return code, f"a window that grows by {more}"
