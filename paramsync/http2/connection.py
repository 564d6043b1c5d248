"""One connection of an HTTP/2 server (RFC 9113): turns bytes into events, and method calls into bytes. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from paramsync.http2 import frames
from paramsync.http2.checks import check_content, check_dependency, check_setting, without_padding
from paramsync.http2.errors import ErrorCode, Http2Error, MalformedHeadError, StreamError
from paramsync.http2.events import Data, Event, Headers, Limits, Lost, Pong, Reset
from paramsync.http2.frames import DATA, END_HEADERS, END_STREAM, HEADER, HEADER_SIZE, LARGEST_NUMBER, PADDED, PREFACE
from paramsync.http2.headers import HeaderReader
from paramsync.http2.sending import Budget, Sender, Stream

_DEFAULTS = Limits()
_AT_ONCE = 256  # most frames for one `receive`, so that other connections get a turn
_WEIGHED = 8  # this many decoded bytes of headers count as a frame
_CONTINUATIONS = 64  # most frames of one block of headers
_TINY = 16  # bytes: a smaller DATA frame takes from the budget, unless it is the last of its stream
_RESET_COST = 5  # taken from the budget if the client resets a request before its answer, and for each StreamError
_ANSWER_GAIN = 10  # added to the budget for each answer
_SETTINGS_AT_ONE = 10  # this many settings cost as much as a frame
_STREAMS_AT_ONE = 16  # changing the windows of this many streams costs as much as a frame


class ServerConnection(Sender):
    """One client's connection. One thread owns it. A method that is called for an ended stream does nothing."""

    __slots__ = (
        "_begun", "_block", "_block_ends", "_block_stream", "_budget", "_credit", "_data_ends", "_data_left",
        "_data_stream", "_expects", "_highest", "_limits", "_lost", "_lot", "_most", "_now", "_padding_left",
        "_reader", "_rest", "_room", "_stream_lot", "_wanted", "is_settled", "last",
        "work",
    )  # fmt: skip

    def __init__(self, limits: Limits = _DEFAULTS) -> None:
        super().__init__()
        self.last = 0  # the highest stream that was not refused
        self._limits = limits
        self._lost = False
        self._rest = bytearray()  # received bytes to read once there are `_wanted` of them
        self._wanted = 0
        self.work = 0
        """How much work the last `receive` did, in frames."""
        self._begun = False
        self.is_settled = False
        """Whether the client has acknowledged our SETTINGS."""
        self._expects = frames.SETTINGS  # the only type of frame that may come next; -1: any
        self._highest = 0
        self._most = LARGEST_NUMBER  # streams above this number are refused
        self._reader = HeaderReader(limits.header_list, limits.header_block)
        self._block: list[bytes] = []
        self._block_stream = 0
        self._block_ends = False
        self._data_stream = 0  # the stream of an incomplete DATA frame
        self._data_left = 0
        self._data_ends = False
        self._padding_left = 0
        self._room = frames.DEFAULT_WINDOW
        self._credit = 0
        self._budget = Budget(limits.control, limits.control_per_second)
        self._now = 0.0
        self._announce()

    def _announce(self) -> None:
        limits = self._limits
        values = {
            frames.MAX_CONCURRENT_STREAMS: limits.streams,
            frames.INITIAL_WINDOW_SIZE: limits.stream_window,
            frames.MAX_FRAME_SIZE: limits.frame,
            frames.MAX_HEADER_LIST_SIZE: limits.header_list,
        }
        self._parts.append(frames.settings(values))
        if limits.connection_window > self._room:
            self._parts.append(frames.window_update(0, limits.connection_window - self._room))
            self._room = limits.connection_window
        self._lot = max(1, self._room // 2)
        self._stream_lot = max(1, limits.stream_window // 2)

    @property
    def has_begun(self) -> bool:
        """Whether the peer has sent its preface and its settings."""
        return self._begun and self._expects != frames.SETTINGS

    @property
    def has_more(self) -> bool:
        """Whether `receive` has frames left to read, and should be called again."""
        return self.work >= _AT_ONCE and not self._lost

    def consumed(self, stream: int, size: int) -> None:
        """Enlarge the peer's windows after the application has processed `size` bytes of Data events.

        Call this for ended streams, too, because the connection's window counts their bytes.
        """
        self._credit += size
        if self._credit >= self._lot:
            self._parts.append(frames.window_update(0, self._credit))
            self._room += self._credit
            self._credit = 0
        opened = self.streams.get(stream)
        if opened is not None and not opened.ended:
            opened.credit += size
            if opened.credit >= self._stream_lot:
                self._parts.append(frames.window_update(stream, opened.credit))
                opened.room += opened.credit
                opened.credit = 0

    def goaway(self, last: int, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """Refuse streams above `last`, and tell the peer."""
        self._most = min(self._most, last)
        self._parts.append(frames.goaway(self._most, code))

    # Receiving --------------------------------------------------------------------------------------------------

    def receive(self, content: bytes, now: float) -> list[Event]:
        """Return the events of these bytes. Never raises.

        Reads only a limited number of frames in one call; `has_more` says whether frames are left. Returns no events
        after Lost.
        """
        events: list[Event] = []
        self.work = 0
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
            at = self._read(content, events) if self._begun else self._read_preface(content, events)
        except Http2Error as error:
            self._lose(error, events)
        else:
            self._rest += content[at:]
        return events

    def _lose(self, error: Http2Error, events: list[Event]) -> None:
        self._parts.append(frames.goaway(self.last, error.code, error.text))
        self._drop_all()
        self._block.clear()
        self._lost = True
        events.append(Lost(error))

    def _read_preface(self, content: bytes, events: list[Event]) -> int:
        if content[: len(PREFACE)] != PREFACE[: len(content)]:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
        self._begun = len(content) >= len(PREFACE)
        return self._read(content, events, len(PREFACE)) if self._begun else 0

    def _read(self, content: bytes, events: list[Event], at: int = 0) -> int:
        """Read up to `_AT_ONCE` whole frames or parts of DATA frames. Returns where the unread bytes begin."""
        end = len(content)
        if self._data_left or self._padding_left:
            at = self._read_data(content, at, events)
        while self.work < _AT_ONCE:
            self.work += 1
            left = end - at - HEADER_SIZE
            if left < 0:
                self._wanted = HEADER_SIZE
                return at
            head, flags, number = HEADER.unpack_from(content, at)
            kind, size, number = head & 0xFF, head >> 8, number & LARGEST_NUMBER
            if size > self._limits.frame or self._expects >= 0:
                self._check_expected(kind, flags, number, size)
            if kind == DATA:
                stream = self.streams.get(number)
                if (
                    stream is not None
                    and 0 < size <= min(left, stream.room, self._room)
                    and not (flags & PADDED or stream.ended or stream.missing >= 0)
                ):
                    at += HEADER_SIZE + size
                    stream.room -= size
                    self._room -= size
                    stream.ended = flags & END_STREAM == END_STREAM
                    events.append(Data(number, content[at - size : at], stream.ended))
                    if size < _TINY and not stream.ended:
                        self._spend(1)
                    continue
                padded = flags & PADDED and size
                if padded and not left:
                    self._wanted = HEADER_SIZE + 1
                    return at
                at += HEADER_SIZE
                padding = content[at] + 1 if padded else 0
                self._begin_data(number, flags, size, padding, events)
                at = self._read_data(content, at + 1 if padded else at, events)
            elif left < size:
                self._wanted = HEADER_SIZE + size
                return at
            else:
                at += HEADER_SIZE + size
                self._take(kind, number, flags, content[at - size : at], events)
        self._wanted = 0
        return at

    def _check_expected(self, kind: int, flags: int, number: int, size: int) -> None:
        if size > self._limits.frame:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
        if kind != self._expects or (kind == frames.SETTINGS and flags & frames.ACK):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} in place of type {self._expects}")
        if kind == frames.CONTINUATION and number != self._block_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"CONTINUATION of stream {number}")

    def _begin_data(self, number: int, flags: int, size: int, padding: int, events: list[Event]) -> None:
        """Check the header of a DATA frame before its content comes."""
        content = size - padding
        if content < 0 or (flags & PADDED and not size):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
        self._room -= size
        if self._room < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "more content than the connection's window")
        self._data_stream, self._data_left, self._data_ends = number, content, bool(flags & END_STREAM)
        self._padding_left = padding - 1 if padding else 0
        stream = self.streams.get(number)
        try:
            if stream is None:
                self._check_late(number)
            else:
                check_content(stream, size, content, self._data_ends)
        except StreamError as error:
            self._break(error, events)
        if padding:
            self.consumed(number, padding)
        if content < _TINY and not self._data_ends:
            self._spend(1)
        if self._data_ends and not content and stream is not None and number in self.streams:
            stream.ended = True
            events.append(Data(number, b"", True))

    def _check_late(self, number: int) -> None:
        self._check_began(number)
        if not self._was_left_early(number):
            raise StreamError(number, ErrorCode.STREAM_CLOSED, "DATA after the end")

    def _read_data(self, content: bytes, at: int, events: list[Event]) -> int:
        """Emit the received content of a DATA frame, and skip its padding."""
        size = min(self._data_left, len(content) - at)
        if size:
            self._data_left -= size
            number = self._data_stream
            stream = self.streams.get(number)
            if stream is None:
                self.consumed(number, size)
            else:
                stream.ended = self._data_ends and not self._data_left
                events.append(Data(number, content[at : at + size], stream.ended))
            at += size
        if self._padding_left:
            size = min(self._padding_left, len(content) - at)
            self._padding_left -= size
            at += size
        return at

    def _take(self, kind: int, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        rule = _RULES[kind] if kind < len(_RULES) else _UNKNOWN
        if rule.size is not None and len(payload) != rule.size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of type {kind} and {len(payload)} bytes")
        if rule.of_stream is not None and rule.of_stream != bool(number):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} of stream {number}")
        if rule.cost:
            self._spend(rule.cost)
        rule.take(self, number, flags, payload, events)

    def _take_headers(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        if not number & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"HEADERS of stream {number}")
        if flags & (PADDED | frames.HAS_PRIORITY):
            payload = without_padding(number, flags, payload)
        self._block_stream, self._block_ends = number, bool(flags & END_STREAM)
        self._take_block(flags, payload, events)

    def _take_continuation(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        if not self._block:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._take_block(flags, payload, events)

    def _take_block(self, flags: int, part: bytes, events: list[Event]) -> None:
        size = len(part)
        if self._block or not flags & END_HEADERS:
            self._block.append(part)
            size = sum(map(len, self._block))
        if size > self._limits.header_block or len(self._block) > _CONTINUATIONS:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"headers of {size} bytes, in {len(self._block)} frames")
        if not flags & END_HEADERS:
            self._expects = frames.CONTINUATION
            return
        if self._block:
            part = b"".join(self._block)
            self._block.clear()
            self._expects = -1
        decoded = self._reader.decoded
        try:
            self._take_section(self._block_stream, self._block_ends, part, events)
        except MalformedHeadError as error:
            self._break(StreamError(self._block_stream, ErrorCode.PROTOCOL_ERROR, str(error)), events)
        except StreamError as error:
            self._break(error, events)
        finally:
            self.work += (self._reader.decoded - decoded) // _WEIGHED

    def _take_section(self, number: int, ended: bool, block: bytes, events: list[Event]) -> None:
        stream = self.streams.get(number)
        if number > self._highest:
            self._highest = number
            self._take_head(number, ended, block, events)
        elif stream is not None:
            self._take_trailers(stream, ended, block)
            events.append(Data(number, b"", True))
        elif self._was_left_early(number):
            self._spend(1)
            self._reader.skip(block)
        else:
            raise Http2Error(ErrorCode.STREAM_CLOSED, f"HEADERS of stream {number}, which is over or was left out")

    def _take_trailers(self, stream: Stream, ended: bool, block: bytes) -> None:
        if stream.ended:
            self._reader.skip(block)
            raise StreamError(stream.number, ErrorCode.STREAM_CLOSED, "HEADERS after the end")
        self._reader.read_trailers(block)
        if not ended or stream.missing > 0:
            raise StreamError(stream.number, ErrorCode.PROTOCOL_ERROR, "trailers that do not end it, or too soon")
        stream.ended = True

    def _take_head(self, number: int, ended: bool, block: bytes, events: list[Event]) -> None:
        if number > self._most or len(self.streams) >= self._limits.streams:
            self._spend(1)
            self._reader.skip(block)
            self._parts.append(frames.rst_stream(number, ErrorCode.REFUSED_STREAM))
            self._leave_early(number)
            return
        self.last = number
        head = self._reader.read(block)
        if ended and head.length > 0:
            raise StreamError(number, ErrorCode.PROTOCOL_ERROR, "less content than content-length says")
        self.streams[number] = Stream(number, ended, head.length, self._limits.stream_window, self._initial_window)
        events.append(Headers(number, head, ended))

    def _take_priority(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        check_dependency(number, payload)

    def _take_rst_stream(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        self._check_began(number)
        stream = self.streams.get(number)
        if stream is not None:
            self._drop(stream)
            events.append(Reset(number, *frames.WORD.unpack(payload)))
            if not stream.answered:
                self._spend(_RESET_COST - 1)

    def _take_settings(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) % frames.SETTING.size or (flags & frames.ACK and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        if flags & frames.ACK:
            self.is_settled = True
            return
        self._expects = -1
        work = len(payload) // frames.SETTING.size // _SETTINGS_AT_ONE
        self.work += work
        self._spend(work)
        changed = dict(frames.SETTING.iter_unpack(payload))
        for name, value in frames.SETTING.iter_unpack(payload):
            check_setting(name, value)
        self._largest = changed.get(frames.MAX_FRAME_SIZE, self._largest)
        self._parts.append(frames.SETTINGS_ACK)
        window = changed.get(frames.INITIAL_WINDOW_SIZE, self._initial_window)
        if window != self._initial_window:
            self._spend(len(self.streams) // _STREAMS_AT_ONE)
            self._change_initial_window(window)
            self._flush(events)

    def _take_push_promise(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE of a client")

    def _take_ping(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        if flags & frames.ACK:
            events.append(Pong(payload))
        else:
            self._parts.append(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _take_goaway(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) < 2 * frames.WORD.size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
        # nothing more to do: the client closes the connection once its calls are over

    def _take_window_update(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        more = frames.WORD.unpack(payload)[0] & LARGEST_NUMBER
        stream = self.streams.get(number)
        if not number:
            self._grow(more)
        elif stream is None:
            self._check_began(number)
        else:
            try:
                self._grow_stream(stream, more)
            except StreamError as error:
                self._break(error, events)
        self._flush(events)

    def _take_unknown(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        """Ignore the frame, as RFC 9113, 4.1 demands."""

    def _check_began(self, number: int) -> None:
        if number > self._highest or not number & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a frame of stream {number}, which did not begin")

    def _spend(self, cost: int) -> None:
        self._budget.earn(_ANSWER_GAIN * self._answers)
        self._answers = 0
        self._budget.spend(cost, self._now, grows=not self.held)

    def _break(self, error: StreamError, events: list[Event]) -> None:
        """Reset a stream on which the peer broke the protocol."""
        stream = self.streams.get(error.stream)
        if stream is None:
            self._parts.append(frames.rst_stream(error.stream, error.code))
            self._leave_early(error.stream)
        else:
            self.reset(error.stream, error.code)
            events.append(Reset(error.stream, error.code))
        self._spend(_RESET_COST)


class _Rule(NamedTuple):
    take: Callable[[ServerConnection, int, int, bytes, list[Event]], None]
    size: int | None = None  # size of the payload; None: any
    of_stream: bool | None = None  # True: the frame must name a stream; False: it must not; None: either
    cost: int = 1  # how much of the budget the frame takes


_UNKNOWN = _Rule(ServerConnection._take_unknown)
_RULES = (  # the rule of each type of frame, in the order of the types
    _UNKNOWN,  # DATA: `_read` handles it, because it reads such a frame in parts
    _Rule(ServerConnection._take_headers, of_stream=True, cost=0),
    _Rule(ServerConnection._take_priority, size=frames.PRIORITY_SIZE, of_stream=True),
    _Rule(ServerConnection._take_rst_stream, size=4, of_stream=True),
    _Rule(ServerConnection._take_settings, of_stream=False),
    _Rule(ServerConnection._take_push_promise),
    _Rule(ServerConnection._take_ping, size=8, of_stream=False),
    _Rule(ServerConnection._take_goaway, of_stream=False),
    _Rule(ServerConnection._take_window_update, size=4),
    _Rule(ServerConnection._take_continuation, of_stream=True, cost=0),
)
