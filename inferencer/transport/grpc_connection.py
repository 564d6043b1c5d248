"""The sending side of one gRPC connection: writes answers, checks that the client is alive, ends the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Protocol, cast

import grpc

from paramsync.http2.connection import Limits, ServerConnection
from paramsync.rpc.access import name_in
from paramsync.rpc.server import ALIVE_SECONDS, IDLE_SECONDS, SILENT_SECONDS

from .grpc_wire import MOST_HEADERS
from .memory_budget import MemoryShare
from .turns import ANSWER_SECONDS, NEWCOMER_SECONDS, READ_BYTES, READ_SECONDS

_LIMITS = Limits(header_list=MOST_HEADERS)
_PING_SECONDS = 20.0  # a client has for the answer to a ping
_LINGER_SECONDS = 2.0  # a client has to read everything and close
_NO_NEW_CALLS = 2**31 - 1  # a GOAWAY with this stream still accepts calls that are on their way, RFC 9113, 6.8
_MOST_BEHIND = 1 << 14  # bytes of frames other than answers that may wait for the client to read
_ALIVE, _LEAVING = b"is alive", b"leaving "  # payloads of our pings


class PortCall(Protocol):
    """A call as the limits of its port see it."""

    @property
    def is_coming(self) -> bool:
        """Whether the call holds bytes of a message that its handler has not taken."""

    def refuse(self, code: grpc.StatusCode, text: str) -> None:
        """End the call with an error, even after answers, and stop its handler."""


class _Farewell(Enum):
    """Progress in telling the client to begin no more calls, RFC 9113, 6.8."""

    NONE = auto()
    DUE = auto()
    TOLD = auto()
    """Once the client answers our ping, every call that it began before the GOAWAY has arrived."""
    DONE = auto()


class Connection:
    """The sending half of a connection. Lives on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, calls: Mapping[int, PortCall]) -> None:
        """`calls` are the open calls by stream."""
        self.loop = loop
        self.calls = calls
        self.http2 = ServerConnection(_LIMITS)
        self.peer = ""
        """The client's address in gRPC's form, such as ipv4:127.0.0.1:1234."""
        self.host = ""
        self.certificate: str | None = None
        """The name in the client's certificate."""
        self.held = 0
        """Bytes of messages that handlers have not taken."""
        self.cost = NEWCOMER_SECONDS
        """See Served."""
        self.began = self.heard = loop.time()
        self.waits = False
        """Whether input waits for its turn."""
        self.is_ending = False
        self.will_flush = False
        """Whether a flush is due in this turn of the event loop."""
        self.transport: asyncio.Transport | None = None
        self._is_deaf = False  # the client sends nothing more
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

    def connect(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # so that `held` says whether the kernel has taken everything; by TLS the transport pauses at `high`, not above
        by_tls = transport.get_extra_info("ssl_object") is not None
        self.transport.set_write_buffer_limits(high=int(by_tls), low=0)
        self.peer = peer_of(transport.get_extra_info("peername"))
        self.host = self.peer.rpartition(":")[0]
        self.certificate = name_in(transport.get_extra_info("peercert"))

    def disconnect(self) -> None:
        self.is_ending, self.transport = True, None
        for share in (*self._unsent.values(), *self._unwritten):
            share.leave()
        self._unsent, self._unwritten = {}, []

    # Sending ----------------------------------------------------------------------------------------------------------

    def begin(self, stream: int, block: bytes) -> None:
        """Send the headers of an answer, together with the frames that follow."""
        self.http2.headers(stream, block)

    def respond(self, stream: int, block: bytes, content: bytes, end: bytes) -> None:
        """Send a whole answer."""
        self._say_farewell()
        self.http2.respond(stream, block, content, end)

    def send(self, stream: int, *parts: bytes) -> bool:
        """Send a message. False: part of the message waits, and a Sent event will come."""
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

    def consume(self, stream: int, size: int) -> None:
        """Let the client send `size` more bytes."""
        self.http2.consumed(stream, size)

    def leave_once_written(self, stream: int, share: MemoryShare) -> None:
        """Give an answer's memory back once the kernel has taken the answer."""
        if self.transport is None:
            share.leave()
        elif stream in self.http2.streams:
            self._unsent[stream] = share
        elif self.http2.held or self.will_flush:
            self._unwritten.append(share)
        else:
            share.leave()

    def on_sent(self, stream: int) -> None:
        """The client's windows have let an answer pass: its share now waits only for the kernel."""
        if (share := self._unsent.pop(stream, None)) is not None:
            self._unwritten.append(share)

    def on_reset(self, stream: int) -> None:
        if (share := self._unsent.pop(stream, None)) is not None:
            share.leave()

    def flush_soon(self) -> None:
        """Flush at the end of this turn of the event loop, with other answers; at once if no call is open."""
        if self.will_flush:
            return
        if self.calls:
            self.will_flush = True
            self.loop.call_soon(self.flush)
        else:
            self.flush()

    def flush(self) -> None:
        self.will_flush = False
        if self.transport is None or self.is_ending:
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

    def pause_reading(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()

    def read_on(self, *, caught_up: bool = False) -> None:
        """Resume reading, unless input waits for its turn or the client reads too little."""
        if caught_up:
            self._behind = 0
        if self.transport is not None and not (self.waits or self._is_deaf) and self._behind <= _MOST_BEHIND:
            self.transport.resume_reading()

    def _fall_behind(self, size: int) -> None:
        """Count frames other than answers, such as replies to pings, that wait in the transport while the kernel takes
        nothing. Above the limit, stop reading. Answers wait within HTTP/2 instead."""
        self._behind += size
        if self._behind > _MOST_BEHIND:
            self.pause_reading()

    # Ending -----------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Check, once a second, whether the client is still there."""
        if self.cost > NEWCOMER_SECONDS:
            self.cost = max(self.cost / 2, NEWCOMER_SECONDS)
        silent = now - self.heard
        if self.is_ending:
            return
        if not self.http2.has_begun:
            if now - self.began >= SILENT_SECONDS:
                self.abort()
        elif self._is_deaf:  # the client cannot answer a ping, but if it is gone the kernel reports an error
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

    def on_pong(self, payload: bytes) -> None:
        self._pinged = None
        if payload == _LEAVING and self._farewell is _Farewell.TOLD:
            self._farewell = _Farewell.DONE
            self.http2.goaway(self.http2.last)

    def on_eof(self) -> bool:
        """The client sends nothing more. True: the connection goes on until its calls are answered (never with TLS)."""
        assert self.transport is not None
        self.flush()
        self._is_deaf = self.transport.can_write_eof() and not self.is_ending and bool(self.http2.streams)
        return self._is_deaf

    def leave(self) -> None:
        """Tell the client to begin no more calls: with the next answer, or at once if no call is open."""
        if self._farewell is _Farewell.NONE and self.http2.has_begun:
            self._farewell = _Farewell.DUE
            if not self.calls:
                self._say_farewell()
                self.flush()

    def close(self) -> None:
        """Accept no more calls, and end the connection once the client has read every answer."""
        self.http2.goaway(self.http2.last)
        self.end_when_answered()
        self.flush()

    def end_when_answered(self) -> None:
        self._farewell = _Farewell.DONE

    def abort(self) -> None:
        self.is_ending = True
        if self.transport is not None:
            self.transport.abort()

    def _say_farewell(self) -> None:
        if self._farewell is _Farewell.DUE:
            self._farewell = _Farewell.TOLD
            self.http2.goaway(_NO_NEW_CALLS)
            self.http2.ping(_LEAVING)

    def _end(self) -> None:
        """Let the client read all answers before the end: closing a socket at once may drop unread bytes."""
        self.is_ending = True
        assert self.transport is not None
        if self.transport.can_write_eof() and not self._is_deaf:
            with suppress(OSError):  # the client has gone
                self.transport.write_eof()
            self.loop.call_later(_LINGER_SECONDS, self.abort)
        else:
            self.transport.close()


def peer_of(name: Any) -> str:
    """A socket's address in gRPC's form."""
    if not isinstance(name, tuple):
        return "unix:"
    host, port = name[:2]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
