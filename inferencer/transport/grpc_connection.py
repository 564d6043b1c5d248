"""One connection of a gRPC port: HTTP/2 between the event loop's transport and the calls that it carries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, cast

from paramsync.http2.connection import Data, GoingAway, Headers, Limits, Lost, Pong, Reset, Sent, ServerConnection
from paramsync.http2.errors import ErrorCode
from paramsync.rpc.access import name_in
from paramsync.rpc.server import ALIVE_SECONDS, IDLE_SECONDS, SILENT_SECONDS

from .grpc_call import Call
from .grpc_wire import MOST_HEADERS, Refusal, asked, unknown
from .turns import ANSWER_SECONDS, NEWCOMER_SECONDS, READ_BYTES, READ_SECONDS

if TYPE_CHECKING:
    from .calls import Calls
    from .memory_budget import MemoryShare

LIMITS = Limits(header_list=MOST_HEADERS)
_ANSWER_SECONDS = 20.0  # for a ping
_LINGER_SECONDS = 2.0  # for the other end to read all, and close
_ALL = 2**31 - 1  # a GOAWAY that takes every call: no more of them are to be begun, RFC 9113, 6.8
_MOST_BEHIND = 1 << 14  # bytes beside answers that may wait for the other end to read
_FEW = 16  # frames of a read whose time is not measured: a clock shows what others did meanwhile, too
_FRAMES = 8  # for each of which a read is expected to take so long again
_ALIVE, _LEAVING = b"is alive", b"leaving "


class _Farewell(Enum):
    """How far the other end was told to begin no more calls, RFC 9113, 6.8."""

    NONE = auto()
    DUE = auto()
    TOLD = auto()
    """It may have begun some before it knew, which its answer to a ping shows to be here."""
    DONE = auto()


class GrpcConnection(asyncio.BufferedProtocol):
    """Lives on one event loop."""

    def __init__(self, port: Calls) -> None:
        self.port = port
        self.loop = port.loop
        self.calls: dict[int, Call] = {}
        self.peer = ""
        """As gRPC names it, such as ipv4:127.0.0.1:1234."""
        self.host = ""
        self.certificate: str | None = None
        """The name in the one that its other end showed."""
        self.held = 0
        """Bytes of messages that are not taken up."""
        self.cost = NEWCOMER_SECONDS
        """See Served."""
        self.began = self.heard = self.loop.time()
        self._turns = port.turns
        self._http2 = ServerConnection(LIMITS)
        self._transport: asyncio.Transport | None = None
        self._pinged: float | None = None
        self._is_due = False  # a flush comes soon
        self._input = b""  # which waits for its turn
        self.waits = False
        """For its turn, with what came."""
        self._behind = 0  # bytes beside answers that the kernel has not taken
        self._unsent: dict[int, MemoryShare] = {}  # of answers that wait for the other end's windows
        self._unwritten: list[MemoryShare] = []  # of those that the kernel has not taken
        self._farewell = _Farewell.NONE
        self._is_ending = False
        self._is_deaf = False  # the other end sends nothing more

    @property
    def unread(self) -> int:
        """How many answers wait until the other end takes them."""
        return len(self._http2.streams) - len(self.calls)

    @property
    def takes_answers(self) -> bool:
        """Whether its other end lets an answer be sent to it."""
        return self._http2.takes_answers

    # What the event loop tells ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # so that `held` says whether the kernel has taken everything; by TLS it is so from `high` on, and not above it
        by_tls = transport.get_extra_info("ssl_object") is not None
        self._transport.set_write_buffer_limits(high=int(by_tls), low=0)
        self.peer = peer_of(transport.get_extra_info("peername"))
        self.host = self.peer.rpartition(":")[0]
        self.certificate = name_in(transport.get_extra_info("peercert"))
        self.port.came(self)
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        turns = self._turns
        return turns.room(self) if turns.is_busy else turns.buffer

    def buffer_updated(self, nbytes: int) -> None:
        turns = self._turns
        self.heard = self.loop.time()
        self._input += bytes(turns.buffer[:nbytes])
        if not turns.is_busy or turns.has_time(self):
            self._take(self.heard)
        else:
            self._wait()

    def serve(self) -> None:
        self.waits = False
        if self._transport is not None:
            try:
                self._take(self.loop.time())
            except BaseException:  # a fault of ours, after which the rest cannot be understood
                self.abort()
                raise
            self._read_on()

    def _take(self, now: float) -> None:
        content, self._input = self._input, b""
        self._is_due = True
        for event in self._http2.receive(content, now):
            _TAKERS[type(event)](self, event)
        self.flush()
        is_ordinary = self._http2.work <= _FEW
        expected = READ_SECONDS * (1 + self._http2.work // _FRAMES)
        seconds = expected if is_ordinary and self.cost < NEWCOMER_SECONDS else self.loop.time() - now
        self.cost += expected if is_ordinary else seconds
        self._turns.spend(seconds)
        if self._http2.has_more:
            self._wait()

    def _wait(self) -> None:
        """For its turn, in which it goes on with what came."""
        self.waits = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._turns.wait(self, len(self._input))

    def _read_on(self) -> None:
        if self._transport is not None and not (self.waits or self._is_deaf) and self._behind <= _MOST_BEHIND:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """The other end sends nothing more. Calls that came whole are answered before the connection ends; by TLS it
        ends at once. Whether it goes on."""
        assert self._transport is not None
        self.flush()
        if not self._transport.can_write_eof() or self._is_ending or not self._http2.streams:
            return False
        self._is_deaf = True
        for call in [*self.calls.values()]:
            if not call.has_ended:
                self._http2.reset(call.stream, ErrorCode.CANCEL)
                call.lost()
        self.close()
        return True

    def pause_writing(self) -> None:
        self._http2.held = True

    def resume_writing(self) -> None:
        self._behind = 0
        self._read_on()
        self._is_due = True
        for event in self._http2.release():
            _TAKERS[type(event)](self, event)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ending, self._transport, self._input = True, None, b""
        for call in [*self.calls.values()]:
            call.lost()
        for share in (*self._unsent.values(), *self._unwritten):
            share.leave()
        self._unsent, self._unwritten = {}, []
        self.port.gone(self)

    # What HTTP/2 tells ------------------------------------------------------------------------------------------------

    def _on_headers(self, event: Headers) -> None:
        head = event.head
        if head.parsed is None:
            head.parsed = asked(head)
        said = head.parsed
        method = None if isinstance(said, Refusal) else self.port.methods.get(said.path)
        if method is None:
            self._http2.headers(event.stream, said.block if isinstance(said, Refusal) else unknown(said), end=True)
            return
        call = self.calls[event.stream] = Call(self, event.stream, said, method)
        self.port.begin(call, self)
        if event.ended and not call.is_over:
            call.came(b"", ended=True)

    def _on_data(self, event: Data) -> None:
        call = self.calls.get(event.stream)
        if call is None:
            self._http2.consumed(event.stream, len(event.content))
        else:
            call.came(event.content, ended=event.ended)

    def _on_reset(self, event: Reset) -> None:
        call = self.calls.get(event.stream)
        if call is not None:
            call.lost()
        if (share := self._unsent.pop(event.stream, None)) is not None:
            share.leave()

    def _on_sent(self, event: Sent) -> None:
        call = self.calls.get(event.stream)
        if call is not None:
            call.sent()
        if (share := self._unsent.pop(event.stream, None)) is not None:
            self._unwritten.append(share)

    def _on_pong(self, event: Pong) -> None:
        self._pinged = None
        if event.payload == _LEAVING and self._farewell is _Farewell.TOLD:
            self._farewell = _Farewell.DONE
            self._http2.goaway(self._http2.last)

    def _on_going_away(self, event: GoingAway) -> None:
        """The other end closes the connection once its calls are over."""

    def _on_lost(self, event: Lost) -> None:
        for call in [*self.calls.values()]:
            call.lost()
        self._farewell = _Farewell.DONE

    # What calls are answered ------------------------------------------------------------------------------------------

    def begin(self, stream: int, block: bytes) -> None:
        self._http2.headers(stream, block)

    def respond(self, call: Call, block: bytes, content: bytes, end: bytes) -> None:
        """All of an answer."""
        self._say_farewell()
        self._http2.respond(call.stream, block, content, end)
        self._earn(call)
        self._over(call)

    def send(self, call: Call, *parts: bytes) -> bool:
        """Whether that was handed over; else the call is told later."""
        self._say_farewell()
        self._earn(call)
        for part in parts:
            done = self._http2.data(call.stream, part)
        self._flush_soon()
        return done

    def end(self, call: Call, block: bytes) -> None:
        self._say_farewell()
        self._http2.headers(call.stream, block, end=True)
        self._over(call)

    def _earn(self, call: Call) -> None:
        """Lower the cost once a call is answered, by about what reading the call took."""
        self.cost = max(0.0, self.cost - ANSWER_SECONDS - call.unanswered // READ_BYTES * READ_SECONDS)
        call.unanswered = 0

    def consumed(self, stream: int, size: int) -> None:
        self._http2.consumed(stream, size)

    def leave_once_written(self, stream: int, share: MemoryShare) -> None:
        if self._transport is None:  # it is gone, and what it had is left already
            share.leave()
        elif stream in self._http2.streams:
            self._unsent[stream] = share
        elif self._http2.held or self._is_due:
            self._unwritten.append(share)
        else:
            share.leave()

    def forget(self, call: Call) -> None:
        if self.calls.pop(call.stream, None) is not None:
            self.port.over(call, self)
            call.over()

    def _over(self, call: Call) -> None:
        self.forget(call)
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Answers that are ready in one turn of the event loop go together."""
        if self.calls and not self._is_due:
            self._is_due = True
            self.loop.call_soon(self.flush)
        elif not self._is_due:
            self.flush()

    def flush(self) -> None:
        self._is_due = False
        if self._transport is None or self._is_ending:
            return
        if output := self._http2.output():
            if self._http2.held:
                self._fall_behind(len(output))
            self._transport.write(output)
        if self._http2.held:
            return
        if self._unwritten:
            for share in self._unwritten:
                share.leave()
            self._unwritten = []
        if self._farewell is _Farewell.DONE and not self._http2.streams:
            self._end()

    def _fall_behind(self, size: int) -> None:
        """Answers wait within HTTP/2 while the kernel takes nothing, other frames here: such as answers to pings. Where
        they are many, nothing more is read."""
        self._behind += size
        if self._behind > _MOST_BEHIND and self._transport is not None:
            self._transport.pause_reading()

    # How it ends ------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Look whether there is still anybody. Once a second."""
        if self.cost > NEWCOMER_SECONDS:
            self.cost = max(self.cost / 2, NEWCOMER_SECONDS)
        silent = now - self.heard
        if self._is_ending:
            return
        if not self._http2.has_begun:
            if now - self.began >= SILENT_SECONDS:
                self.abort()
        elif self._is_deaf:  # and answers no ping, but where nobody is there any more, the kernel says so
            self._http2.ping(_ALIVE)
            self.flush()
        elif self._farewell is _Farewell.DONE:
            if silent >= _ANSWER_SECONDS:
                self.abort()
        elif not self._http2.streams:
            if silent >= IDLE_SECONDS:
                self.close()
        elif self._pinged is not None:
            if now - self._pinged >= _ANSWER_SECONDS:
                self.abort()
        elif silent >= ALIVE_SECONDS:
            self._pinged = now
            self._http2.ping(_ALIVE)
            self.flush()

    def leave(self) -> None:
        """Have the other end begin no more calls: it is told with the next answer, which it waits for; else at once."""
        if self._farewell is _Farewell.NONE and self._http2.has_begun:
            self._farewell = _Farewell.DUE
            if not self.calls:
                self._say_farewell()
                self.flush()

    def close(self) -> None:
        """Have no more calls, and end once all that was answered has been read."""
        self._http2.goaway(self._http2.last)
        self._farewell = _Farewell.DONE
        self.flush()

    def abort(self) -> None:
        self._is_ending = True
        if self._transport is not None:
            self._transport.abort()

    def _say_farewell(self) -> None:
        if self._farewell is _Farewell.DUE:
            self._farewell = _Farewell.TOLD
            self._http2.goaway(_ALL)
            self._http2.ping(_LEAVING)

    def _end(self) -> None:
        """The other end reads what was written before it finds the end: a socket that is closed may drop that."""
        self._is_ending = True
        assert self._transport is not None
        if self._transport.can_write_eof() and not self._is_deaf:
            with suppress(OSError):  # the other end has gone
                self._transport.write_eof()
            self.loop.call_later(_LINGER_SECONDS, self.abort)
        else:
            self._transport.close()


_TAKERS: dict[type, Callable[[GrpcConnection, Any], None]] = {
    Headers: GrpcConnection._on_headers,
    Data: GrpcConnection._on_data,
    Reset: GrpcConnection._on_reset,
    Sent: GrpcConnection._on_sent,
    Pong: GrpcConnection._on_pong,
    GoingAway: GrpcConnection._on_going_away,
    Lost: GrpcConnection._on_lost,
}


def peer_of(name: Any) -> str:
    """As gRPC names it."""
    if not isinstance(name, tuple):
        return "unix:"
    host, port = name[:2]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
