"""The connections of the HTTP port: their limit, which are closed for new ones, and the answer to one too many."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web

from paramsync.rpc.server import SILENT_SECONDS, UNFORESEEN, one_line
from paramsync.rpc.tls import ServerTls

from ...transport.listeners import Acceptor
from .replies import bare, failed

_AIOHTTP = logging.getLogger("paramsync.rest.http")
_AIOHTTP.setLevel(logging.CRITICAL)  # what strangers send that is no HTTP is an error of theirs
_MOST = 1024
_MORE = 64  # by which only health and metrics may be asked: whoever watches the server gets an answer while it is busy
_MOST_TOLD = 1024  # at once, that they are too many; those beyond them are told and not listened to
_LINGERING = 1.0  # for what a client goes on sending of what was refused, so that it comes to read why
_TOLD_SECONDS = 5.0  # the same of a connection too many, whose request may not have come yet
_BRIEFLY = 30  # so many times shorter than the patience is what a new connection may say nothing, where all are taken
_SHOWN = 200  # characters of what is wrong with it
FULL = "there are as many connections as there may be; try again in a moment"


class Connections:
    """All connections of one port. Lives on one event loop."""

    def __init__(self, handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], *, patience: float) -> None:
        """`patience` is how many seconds a new one has for its first request, and any for its next."""
        self._patience = patience
        self._web = web.Server(handle, handler_cancellation=True)
        self._open: set[_Connection] = set()
        self._silent: dict[_Connection, float] = {}  # no request of theirs came yet; who was last heard is last
        self._idle: dict[_Connection, float] = {}  # whose last request was answered; who waits longest is first
        self._told = 0
        self._by_tls = False
        self._handshake = min(SILENT_SECONDS, patience / 6)  # seconds
        self._acceptor = Acceptor(self._accepted, handshake_seconds=self._handshake)

    async def start(self, listeners: Iterable[socket.socket], tls: ServerTls | None) -> None:
        """Accept from these: it takes them over."""
        self._by_tls = tls is not None
        self._acceptor.take(listeners, None if tls is None else tls.http_context())
        await self._acceptor.start()

    def stop_listening(self, *, handed_on: bool = False) -> None:
        """See Acceptor.stop."""
        self._acceptor.stop(handed_on=handed_on)

    async def close(self, seconds: float) -> None:
        """No new ones from now on; those that are asked nothing end, and the others once they are answered."""
        self.stop_listening()
        self._web.pre_shutdown()
        await self._web.shutdown(seconds)

    def __len__(self) -> int:
        return len(self._open)

    def asked(self, connection: web.RequestHandler) -> bool:
        """A request came on it. Whether it may be one for a prediction."""
        if isinstance(connection, _Connection):
            self._silent.pop(connection, None)
            self._idle.pop(connection, None)
            return not connection.beyond
        return True

    def answered(self, connection: web.RequestHandler) -> None:
        """It has its answer, and waits for nothing."""
        if isinstance(connection, _Connection) and connection in self._open:
            self._idle[connection] = asyncio.get_running_loop().time()

    def over(self, connection: _Connection) -> None:
        if connection.timer is not None:
            connection.timer.cancel()  # the event loop would keep the connection until then
        self._open.discard(connection)
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)

    def heard(self, connection: _Connection) -> None:
        """Something came on it that may become a request."""
        if self._silent.pop(connection, None) is not None:
            self._silent[connection] = asyncio.get_running_loop().time()

    def _accepted(self) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        beyond = len(self) >= _MOST and not self._has_made_room(loop.time())
        if beyond and len(self) >= _MOST + _MORE:
            return _Refused(self)
        connection = _Connection(
            self,
            self._web,
            beyond=beyond,
            loop=loop,
            access_log=None,
            auto_decompress=False,  # which it would do on the event loop
            keepalive_timeout=self._patience,
            lingering_time=min(_LINGERING, self._patience / 10),
            logger=_AIOHTTP,
        )
        self._open.add(connection)
        self._silent[connection] = loop.time()
        if self._by_tls:
            connection.timer = loop.call_later(2 * self._handshake, self._check_handshake, connection)
        else:
            connection.timer = loop.call_later(self._patience, self._check, connection)
        return connection

    def _has_made_room(self, now: float) -> bool:
        """Whether one could be closed that had time to say something, did not just do so, and waits for nothing."""
        for waiting in (self._silent, self._idle):
            oldest = next(iter(waiting), None)
            if oldest is None or now - waiting[oldest] < self._patience / _BRIEFLY or _has_unread(oldest.transport):
                continue
            del waiting[oldest]
            oldest.force_close()
            return True
        return False

    def _check_handshake(self, connection: _Connection) -> None:
        """One that failed leaves no connection, and nobody tells of that."""
        if connection.transport is None:
            self.over(connection)
        else:
            left = self._patience - 2 * self._handshake
            connection.timer = asyncio.get_running_loop().call_later(left, self._check, connection)

    def _check(self, connection: _Connection) -> None:
        if self._silent.pop(connection, None) is not None:
            connection.force_close()

    def tells(self, more: int) -> bool:
        """So many more, or fewer, are told that they are too many. Whether one of them may stay to read it."""
        self._told += more
        return self._told <= _MOST_TOLD


class _Connection(web.RequestHandler):
    """A connection whose malformed requests get our errors instead of aiohttp's."""

    __slots__ = ("_connections", "beyond", "timer")

    def __init__(self, connections: Connections, server: web.Server, *, beyond: bool, **options: Any) -> None:
        super().__init__(server, **options)
        self._connections = connections
        self.beyond = beyond  # as many as may predict are there
        self.timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._connections.heard(self)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._connections.over(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # which counts, and raises where an answer has begun
        text = f"request: expected HTTP/1.1, found what is none: {one_line(message or str(exc))[:_SHOWN]}"
        return failed(status, UNFORESEEN if status == 500 else text, last=True)


class _Refused(asyncio.Protocol):
    """One too many. It is told, and listened to until it has read that: else the kernel drops what it did not read."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(bare(503, FULL))
        if self._connections.tells(1) and transport.can_write_eof():  # by TLS it cannot
            transport.write_eof()
            asyncio.get_running_loop().call_later(_TOLD_SECONDS, transport.abort)
        else:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.tells(-1)


def _has_unread(transport: asyncio.BaseTransport | None) -> bool:
    """Whether more came than the event loop has had time to look at."""
    if transport is None or transport.is_closing():
        return False
    waiting = select.poll()
    waiting.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(waiting.poll(0))
