"""One gRPC connection: turns bytes from the socket into events of calls, sends answers, ends the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Any, cast

import grpc

from paramsync.http2.connection import ServerConnection
from paramsync.http2.errors import ErrorCode
from paramsync.http2.events import Data, Headers, Limits, Lost, Pong, Reset, Sent
from paramsync.rpc.access import name_in
from paramsync.rpc.server import ALIVE_SECONDS, IDLE_SECONDS, SILENT_SECONDS

from .calls import Calls
from .connections import Connections
from .grpc_call import GrpcCall
from .grpc_wire import MOST_HEADERS, Refusal, asked, unknown
from .memory_budget import MemoryShare
from .turns import ANSWER_SECONDS, NEWCOMER_SECONDS, READ_BYTES, READ_SECONDS, Turns

_LIMITS = Limits(header_list=MOST_HEADERS)
_PING_SECONDS = 20.0  # how long a client may take to answer a ping
_LINGER_SECONDS = 2.0  # how long a client may take to read the last answers and close the connection
_NO_NEW_CALLS = 2**31 - 1  # a GOAWAY with this stream still accepts calls that are on their way, RFC 9113, 6.8
_QUIET_SECONDS = 1.0  # `leave` sends GOAWAY to a client that has no call and has sent nothing for so long
_MOST_BEHIND = 1 << 14  # bytes of frames other than answers that may wait for the client to read
# A read of few frames is charged an estimated time, because a measured time would include the work of other threads.
_FEW = 16  # a read of at most so many frames is charged an estimate
_FRAMES = 8  # every 8 frames add READ_SECONDS to the estimate
_ALIVE, _LEAVING = b"is alive", b"leaving "  # payloads of our pings


class _Farewell(Enum):
    """Progress in telling the client to begin no more calls, RFC 9113, 6.8."""

    NONE = auto()
    DUE = auto()
    TOLD = auto()
    """GOAWAY and a ping were sent. Once the client answers the ping, all calls that it began before have arrived."""
    DONE = auto()


class GrpcConnection(asyncio.BufferedProtocol):
    """The server's end of one connection. Lives on one event loop."""

    def __init__(self, calls: Calls, connections: Connections, turns: Turns) -> None:
        self.calls: dict[int, GrpcCall] = {}
        """Open calls by stream."""
        self.http2 = ServerConnection(_LIMITS)
        self.peer = ""
        """The client's address in gRPC's form, such as ipv4:127.0.0.1:1234."""
        self.host = ""
        self.certificate: str | None = None
        """The name in the client's certificate."""
        self.held = 0
        """Bytes of messages that handlers have not taken."""
        self.cost = NEWCOMER_SECONDS
        """Seconds lately spent on this connection's input, less a credit for each answer: see turns.py."""
        self.began = self.heard = calls.loop.time()
        self.waits = False
        """Whether input waits for its turn."""
        self.transport: asyncio.Transport | None = None
        self._calls = calls
        self._connections = connections
        self._turns = turns
        self._loop = calls.loop
        self._input = b""  # received, not yet handled
        self._will_flush = False  # whether a flush follows, in this turn of the event loop or in the next turn
        self._is_ending = False
        self._is_deaf = False  # the client has closed its sending side
        self._pinged: float | None = None
        self._behind = 0  # bytes of frames other than answers that the kernel has not taken
        self._unsent: dict[int, MemoryShare] = {}  # shares of answers that wait for the client's windows
        self._unwritten: list[MemoryShare] = []  # shares of answers that the kernel has not taken
        self._farewell = _Farewell.NONE

    @property
    def unread(self) -> int:
        """The number of answers that wait for the client to read."""
        return len(self.http2.streams) - len(self.calls)

    @property
    def takes_answers(self) -> bool:
        """Whether the client's windows allow sending an answer."""
        return self.http2.takes_answers

    # Called by asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # Pause writing as soon as a byte waits for the kernel, so that `http2.held` says whether a byte waits. A plain
        # transport pauses above `high`, a TLS transport already at `high`.
        by_tls = transport.get_extra_info("ssl_object") is not None
        self.transport.set_write_buffer_limits(high=int(by_tls), low=0)
        self.peer = peer_of(transport.get_extra_info("peername"))
        self.host = self.peer.rpartition(":")[0]
        self.certificate = name_in(transport.get_extra_info("peercert"))
        self._connections.add(self)
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        turns = self._turns
        return turns.room(self) if turns.is_busy else turns.buffer

    def buffer_updated(self, nbytes: int) -> None:
        turns = self._turns
        now = self.heard = self._loop.time()
        self._input += bytes(turns.buffer[:nbytes])
        if not turns.is_busy or turns.has_time(self):
            self._take(now)
        else:
            self._wait()

    def serve(self) -> None:
        """Take input that waited for its turn."""
        self.waits = False
        if self.transport is not None:
            try:
                self._take(self._loop.time())
            except BaseException:  # a fault in our code, after which the rest of the input cannot be parsed
                self.abort()
                raise
            self._read_on()

    def eof_received(self) -> bool:
        """Handle the end of the client's input: answer calls whose request is complete, then close the connection.

        A TLS connection is closed at once.
        """
        assert self.transport is not None
        self.flush()
        if not self.transport.can_write_eof() or self._is_ending or not self.http2.streams:
            return False
        self._is_deaf = True
        for call in [*self.calls.values()]:
            if not call.has_ended:
                self.http2.reset(call.stream, ErrorCode.CANCEL)
                call.lose()
        self.close()
        return True

    def pause_writing(self) -> None:
        self.http2.held = True

    def resume_writing(self) -> None:
        self._behind = 0
        self._read_on()
        self._will_flush = True
        for event in self.http2.release():
            _TAKERS[type(event)](self, event)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ending, self.transport, self._input = True, None, b""
        for share in (*self._unsent.values(), *self._unwritten):
            share.leave()
        self._unsent, self._unwritten = {}, []
        self._lose_all()
        self._connections.discard(self)

    # Internals --------------------------------------------------------------------------------------------------------

    def _take(self, now: float) -> None:
        """Handle as much input as one turn allows, and add the time that this took to the connection's cost."""
        content, self._input = self._input, b""
        self._will_flush = True
        for event in self.http2.receive(content, now):
            _TAKERS[type(event)](self, event)
        self.flush()
        is_ordinary = self.http2.work <= _FEW
        expected = READ_SECONDS * (1 + self.http2.work // _FRAMES)
        seconds = expected if is_ordinary and self.cost < NEWCOMER_SECONDS else self._loop.time() - now
        self.cost += expected if is_ordinary else seconds
        self._turns.spend(seconds)
        if self.http2.has_more:
            self._wait()

    def _wait(self) -> None:
        """Leave the received input for a later turn."""
        self.waits = True
        self._pause_reading()
        self._turns.wait(self, len(self._input))

    def _lose_all(self) -> None:
        for call in [*self.calls.values()]:
            call.lose()

    # Events of HTTP/2 -------------------------------------------------------------------------------------------------

    def _on_headers(self, event: Headers) -> None:
        head = event.head
        if head.parsed is None:
            head.parsed = asked(head)
        said = head.parsed
        method = None if isinstance(said, Refusal) else self._calls.methods.get(said.path)
        if method is None:
            self.http2.headers(event.stream, said.block if isinstance(said, Refusal) else unknown(said), end=True)
            return
        call = GrpcCall(self._calls, self, event.stream, said, method)
        self.calls[event.stream] = call
        self._calls.begin(call, self)
        if event.ended and not call.is_over:
            call.receive(b"", ended=True)

    def _on_data(self, event: Data) -> None:
        call = self.calls.get(event.stream)
        if call is None:
            self.http2.consumed(event.stream, len(event.content))
        else:
            call.receive(event.content, ended=event.ended)

    def _on_reset(self, event: Reset) -> None:
        call = self.calls.get(event.stream)
        if call is not None:
            call.lose()
        if (share := self._unsent.pop(event.stream, None)) is not None:
            share.leave()

    def _on_sent(self, event: Sent) -> None:
        call = self.calls.get(event.stream)
        if call is not None:
            call.on_sent()
        if (share := self._unsent.pop(event.stream, None)) is not None:  # the answer now waits only for the kernel
            self._unwritten.append(share)

    def _on_pong(self, event: Pong) -> None:
        self._pinged = None
        if event.payload == _LEAVING and self._farewell is _Farewell.TOLD:
            self._farewell = _Farewell.DONE
            self.http2.goaway(self.http2.last)

    def _on_lost(self, event: Lost) -> None:
        self._lose_all()
        self._farewell = _Farewell.DONE

    # Sending ----------------------------------------------------------------------------------------------------------

    def respond(self, stream: int, block: bytes, content: bytes, end: bytes) -> None:
        """Send a whole answer."""
        self._say_farewell()
        self.http2.respond(stream, block, content, end)

    def send(self, stream: int, *parts: bytes) -> bool:
        """Send a message. Returns False if a part of it waits; a Sent event comes once all of it is sent."""
        self._say_farewell()
        for part in parts:
            done = self.http2.data(stream, part)
        self.flush_soon()
        return done

    def end(self, stream: int, block: bytes) -> None:
        """Send the headers that end a call."""
        self._say_farewell()
        self.http2.headers(stream, block, end=True)

    def earn(self, unanswered: int) -> None:
        """Lower the cost after an answer, by about the time that reading the call's bytes took."""
        self.cost = max(0.0, self.cost - ANSWER_SECONDS - unanswered // READ_BYTES * READ_SECONDS)

    def leave_once_written(self, stream: int, share: MemoryShare) -> None:
        """Give an answer's memory back once the kernel has taken the answer."""
        if self.transport is None:
            share.leave()
        elif stream in self.http2.streams:
            self._unsent[stream] = share
        elif self.http2.held or self._will_flush:
            self._unwritten.append(share)
        else:
            share.leave()

    def flush_soon(self) -> None:
        """Flush in the next turn of the event loop, together with other answers; at once if no call is open."""
        if self._will_flush:
            return
        if self.calls:
            self._will_flush = True
            self._loop.call_soon(self.flush)
        else:
            self.flush()

    def flush(self) -> None:
        self._will_flush = False
        if self.transport is None or self._is_ending:
            return
        if output := self.http2.output():
            if self.http2.held:
                self._fall_behind(len(output))
            self.transport.write(output)
        if self.http2.held:
            return
        if self._unwritten:
            for share in self._unwritten:
                share.leave()
            self._unwritten = []
        if self._farewell is _Farewell.DONE and not self.http2.streams:
            self._end()

    # Reading ----------------------------------------------------------------------------------------------------------

    def _pause_reading(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()

    def _read_on(self) -> None:
        """Resume reading, unless input waits for its turn or the client reads too little."""
        if self.transport is not None and not (self.waits or self._is_deaf) and self._behind <= _MOST_BEHIND:
            self.transport.resume_reading()

    def _fall_behind(self, size: int) -> None:
        """Count frames other than answers, such as replies to pings, that wait in the transport while the kernel takes
        nothing. Above the limit, stop reading. Answers wait within HTTP/2 instead."""
        self._behind += size
        if self._behind > _MOST_BEHIND:
            self._pause_reading()

    # Ending -----------------------------------------------------------------------------------------------------------

    def refuse_coming(self, code: grpc.StatusCode, text: str) -> None:
        """End each call that has a message that is being received or waits for its handler."""
        for call in [*self.calls.values()]:
            if call.is_coming:
                call.refuse(code, text)

    def check(self, now: float) -> None:
        """Check, once a second, whether the client is still there."""
        if self.cost > NEWCOMER_SECONDS:
            self.cost = max(self.cost / 2, NEWCOMER_SECONDS)
        silent = now - self.heard
        if self._is_ending:
            return
        if not self.http2.has_begun:
            if now - self.began >= SILENT_SECONDS:
                self.abort()
        elif self._is_deaf:  # the client cannot answer a ping, but the kernel reports an error if the client is gone
            self.http2.ping(_ALIVE)
            self.flush()
        elif self._farewell is _Farewell.DONE:
            if silent >= _PING_SECONDS:
                self.abort()
        elif not self.http2.streams:
            if silent >= IDLE_SECONDS:
                self.close()
        elif self._pinged is not None:
            if now - self._pinged >= _PING_SECONDS:
                self.abort()
        elif silent >= ALIVE_SECONDS:
            self._pinged = now
            self.http2.ping(_ALIVE)
            self.flush()

    def leave(self) -> None:
        """Tell the client to begin no more calls: with the next answer, or once the client has been quiet for a while.
        Call this again until the connection is closed.

        A call fails if the client begins it while GOAWAY is on its way, and gRPC repeats no call of more than 256 KB.
        GOAWAY is therefore sent with an answer, so that it arrives before the client's next call. It is never sent
        before the client has taken our SETTINGS, because a client of gRPC 1.85 would then wait forever.
        """
        if self._farewell is _Farewell.NONE and self.http2.is_settled:
            self._farewell = _Farewell.DUE
        is_quiet = not self.calls and self._loop.time() - self.heard >= _QUIET_SECONDS
        if self._farewell is _Farewell.DUE and is_quiet:
            self._say_farewell()
            self.flush()

    def close(self) -> None:
        """Accept no more calls, and end the connection once the client has read every answer."""
        self.http2.goaway(self.http2.last)
        self._farewell = _Farewell.DONE
        self.flush()

    def abort(self) -> None:
        self._is_ending = True
        if self.transport is not None:
            self.transport.abort()

    def _say_farewell(self) -> None:
        if self._farewell is _Farewell.DUE:
            self._farewell = _Farewell.TOLD
            self.http2.goaway(_NO_NEW_CALLS)
            self.http2.ping(_LEAVING)

    def _end(self) -> None:
        """Let the client read all answers before the end: closing a socket at once may drop unread bytes."""
        self._is_ending = True
        assert self.transport is not None
        if self.transport.can_write_eof() and not self._is_deaf:
            with suppress(OSError):  # the client has gone
                self.transport.write_eof()
            self._loop.call_later(_LINGER_SECONDS, self.abort)
        else:
            self.transport.close()


_TAKERS: dict[type, Callable[[GrpcConnection, Any], None]] = {
    Headers: GrpcConnection._on_headers,
    Data: GrpcConnection._on_data,
    Reset: GrpcConnection._on_reset,
    Sent: GrpcConnection._on_sent,
    Pong: GrpcConnection._on_pong,
    Lost: GrpcConnection._on_lost,
}


def peer_of(name: Any) -> str:
    """Return a socket's address in gRPC's form."""
    if not isinstance(name, tuple):
        return "unix:"
    host, port = name[:2]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
