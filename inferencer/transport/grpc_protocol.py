"""The receiving side of one gRPC connection: turns the bytes that asyncio delivers into events of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from paramsync.http2.connection import Data, GoingAway, Headers, Lost, Pong, Reset, Sent
from paramsync.http2.errors import ErrorCode

from .calls import Calls
from .connections import Connections
from .grpc_call import GrpcCall
from .grpc_connection import Connection
from .grpc_wire import Refusal, asked, unknown
from .turns import NEWCOMER_SECONDS, READ_SECONDS, Turns

_FEW = 16  # frames up to which a read's cost is estimated: a measured time would include other threads' work
_FRAMES = 8  # frames of a read that add READ_SECONDS to the estimate


class GrpcProtocol(asyncio.BufferedProtocol):
    """The receiving half of a connection. Lives on one event loop."""

    def __init__(self, calls: Calls, connections: Connections, turns: Turns) -> None:
        self._calls = calls
        self._connections = connections
        self._turns = turns
        self.open: dict[int, GrpcCall] = {}
        """Calls by stream."""
        self.connection = Connection(calls.loop, self.open)
        self._http2 = self.connection.http2
        self._loop = calls.loop
        self._input = b""  # received, not yet handled

    @property
    def cost(self) -> float:
        return self.connection.cost

    # Called by asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.connect(transport)
        self._connections.add(self.connection)
        self.connection.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        turns = self._turns
        return turns.room(self) if turns.is_busy else turns.buffer

    def buffer_updated(self, nbytes: int) -> None:
        turns = self._turns
        now = self.connection.heard = self._loop.time()
        self._input += bytes(turns.buffer[:nbytes])
        if not turns.is_busy or turns.has_time(self):
            self._take(now)
        else:
            self._wait()

    def serve(self) -> None:
        """Take input that waited for its turn."""
        self.connection.waits = False
        if self.connection.transport is not None:
            try:
                self._take(self._loop.time())
            except BaseException:  # a fault of ours: the rest of the input cannot be parsed any more
                self.connection.abort()
                raise
            self.connection.read_on()

    def eof_received(self) -> bool:
        """Answer calls whose request is complete before the connection closes; close a TLS connection at once."""
        if not self.connection.on_eof():
            return False
        for call in [*self.open.values()]:
            if not call.has_ended:
                self._http2.reset(call.stream, ErrorCode.CANCEL)
                call.lose()
        self.connection.close()
        return True

    def pause_writing(self) -> None:
        self._http2.held = True

    def resume_writing(self) -> None:
        self.connection.read_on(caught_up=True)
        self.connection.will_flush = True
        for event in self._http2.release():
            _TAKERS[type(event)](self, event)
        self.connection.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._input = b""
        self.connection.disconnect()
        self._lose_all()
        self._connections.discard(self.connection)

    # Internals --------------------------------------------------------------------------------------------------------

    def _take(self, now: float) -> None:
        """Handle as much input as one turn allows, and add its time to the connection's cost."""
        content, self._input = self._input, b""
        connection = self.connection
        connection.will_flush = True
        for event in self._http2.receive(content, now):
            _TAKERS[type(event)](self, event)
        connection.flush()
        is_ordinary = self._http2.work <= _FEW
        expected = READ_SECONDS * (1 + self._http2.work // _FRAMES)
        seconds = expected if is_ordinary and connection.cost < NEWCOMER_SECONDS else self._loop.time() - now
        connection.cost += expected if is_ordinary else seconds
        self._turns.spend(seconds)
        if self._http2.has_more:
            self._wait()

    def _wait(self) -> None:
        """Leave the received input for a later turn."""
        self.connection.waits = True
        self.connection.pause_reading()
        self._turns.wait(self, len(self._input))

    def _lose_all(self) -> None:
        for call in [*self.open.values()]:
            call.lose()

    def _on_headers(self, event: Headers) -> None:
        head = event.head
        if head.parsed is None:
            head.parsed = asked(head)
        said = head.parsed
        method = None if isinstance(said, Refusal) else self._calls.methods.get(said.path)
        if method is None:
            self._http2.headers(event.stream, said.block if isinstance(said, Refusal) else unknown(said), end=True)
            return
        call = GrpcCall(self._calls, self.connection, self.open, event.stream, said, method)
        self.open[event.stream] = call
        self._calls.begin(call, self.connection)
        if event.ended and not call.is_over:
            call.receive(b"", ended=True)

    def _on_data(self, event: Data) -> None:
        call = self.open.get(event.stream)
        if call is None:
            self._http2.consumed(event.stream, len(event.content))
        else:
            call.receive(event.content, ended=event.ended)

    def _on_reset(self, event: Reset) -> None:
        call = self.open.get(event.stream)
        if call is not None:
            call.lose()
        self.connection.on_reset(event.stream)

    def _on_sent(self, event: Sent) -> None:
        call = self.open.get(event.stream)
        if call is not None:
            call.on_sent()
        self.connection.on_sent(event.stream)

    def _on_pong(self, event: Pong) -> None:
        self.connection.on_pong(event.payload)

    def _on_going_away(self, event: GoingAway) -> None:
        """The client closes the connection once its calls are over."""

    def _on_lost(self, event: Lost) -> None:
        self._lose_all()
        self.connection.end_when_answered()


_TAKERS: dict[type, Callable[[GrpcProtocol, Any], None]] = {
    Headers: GrpcProtocol._on_headers,
    Data: GrpcProtocol._on_data,
    Reset: GrpcProtocol._on_reset,
    Sent: GrpcProtocol._on_sent,
    Pong: GrpcProtocol._on_pong,
    GoingAway: GrpcProtocol._on_going_away,
    Lost: GrpcProtocol._on_lost,
}
