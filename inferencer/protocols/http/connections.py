"""The connections of the HTTP port: limits their number, and closes an idle connection to make room for a new one."""

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
_AIOHTTP.setLevel(logging.CRITICAL)  # malformed requests are their senders' errors, not ours
_MOST = 1024
_MORE = 64  # additional connections, only for health and metrics, so that monitoring works while the server is busy
_MOST_TOLD = 1024  # most refused connections that stay open at a time, so that their clients can read the reason
_LINGERING = 1.0  # seconds for reading the rest of a refused body, so that its client reads the answer
_TOLD_SECONDS = 5.0  # seconds that a refused connection stays open, because its request may still be on its way
_BRIEFLY = 30  # at the limit, a connection may be silent for 1/30 of the patience before it is closed to make room
_SHOWN = 200  # most characters of an error message
FULL = "there are as many connections as there may be; try again in a moment"


class Connections:
    """All connections of one port. Lives on one event loop."""

    def __init__(self, handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], *, patience: float) -> None:
        """A connection has `patience` seconds for its first request, and for each further request."""
        self._patience = patience
        self._web = web.Server(handle, handler_cancellation=True)
        self._open: set[_Connection] = set()
        self._silent: dict[_Connection, float] = {}  # before the first request: time of the last bytes; newest last
        self._idle: dict[_Connection, float] = {}  # between requests: time of the last answer; newest last
        self._told = 0
        self._by_tls = False
        self._handshake = min(SILENT_SECONDS, patience / 6)  # seconds for a TLS handshake
        self._acceptor = Acceptor(self._accepted, handshake_seconds=self._handshake)

    async def start(self, listeners: Iterable[socket.socket], tls: ServerTls | None) -> None:
        """Accept connections from these listeners, and close the listeners at the end."""
        self._by_tls = tls is not None
        self._acceptor.take(listeners, None if tls is None else tls.http_context())
        await self._acceptor.start()

    def stop_listening(self, *, handed_on: bool = False) -> None:
        """See Acceptor.stop."""
        self._acceptor.stop(handed_on=handed_on)

    async def close(self, seconds: float) -> None:
        """Accept no more connections; close idle ones now, and busy ones after their answers."""
        self.stop_listening()
        self._web.pre_shutdown()
        await self._web.shutdown(seconds)

    def __len__(self) -> int:
        return len(self._open)

    def asked(self, connection: web.RequestHandler) -> bool:
        """Record that a request came. Returns False if its connection is only for health and metrics."""
        if isinstance(connection, _Connection):
            self._silent.pop(connection, None)
            self._idle.pop(connection, None)
            return not connection.beyond
        return True

    def answered(self, connection: web.RequestHandler) -> None:
        """Record that the request of this connection is answered."""
        if isinstance(connection, _Connection) and connection in self._open:
            self._idle[connection] = asyncio.get_running_loop().time()

    def over(self, connection: _Connection) -> None:
        if connection.timer is not None:
            connection.timer.cancel()  # otherwise the event loop would keep the connection until the timer fires
        self._open.discard(connection)
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)

    def heard(self, connection: _Connection) -> None:
        """Record that bytes came, which may become the first request."""
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
            auto_decompress=False,  # aiohttp would decompress on the event loop
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
        """Close one connection that has been silent or idle for a while and has no unread bytes.

        Returns False if there is no such connection.
        """
        for waiting in (self._silent, self._idle):
            oldest = next(iter(waiting), None)
            if oldest is None or now - waiting[oldest] < self._patience / _BRIEFLY or _has_unread(oldest.transport):
                continue
            del waiting[oldest]
            oldest.force_close()
            return True
        return False

    def _check_handshake(self, connection: _Connection) -> None:
        """Forget a connection whose TLS handshake failed, because asyncio does not report its end."""
        if connection.transport is None:
            self.over(connection)
        else:
            left = self._patience - 2 * self._handshake
            connection.timer = asyncio.get_running_loop().call_later(left, self._check, connection)

    def _check(self, connection: _Connection) -> None:
        if self._silent.pop(connection, None) is not None:
            connection.force_close()

    def tells(self, more: int) -> bool:
        """Add `more`, which may be negative, to the number of refused connections that are open.

        Returns False if there are too many to keep another one open until its client has read the reason.
        """
        self._told += more
        return self._told <= _MOST_TOLD


class _Connection(web.RequestHandler):
    """A connection whose malformed requests get our errors instead of aiohttp's."""

    __slots__ = ("_connections", "beyond", "timer")

    def __init__(self, connections: Connections, server: web.Server, *, beyond: bool, **options: Any) -> None:
        super().__init__(server, **options)
        self._connections = connections
        self.beyond = beyond  # only for health and metrics
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
        super().handle_error(request, status, exc, message)  # counts the error, and raises if an answer has begun
        text = f"request: expected HTTP/1.1, found something else: {one_line(message or str(exc))[:_SHOWN]}"
        return failed(status, UNFORESEEN if status == 500 else text, last=True)


class _Refused(asyncio.Protocol):
    """A refused connection. It stays open for a while, because closing a socket can drop an answer that is not read."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(bare(503, FULL))
        if self._connections.tells(1) and transport.can_write_eof():  # TLS cannot
            transport.write_eof()
            asyncio.get_running_loop().call_later(_TOLD_SECONDS, transport.abort)
        else:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.tells(-1)


def _has_unread(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the kernel has bytes of this connection that the event loop has not read yet."""
    if transport is None or transport.is_closing():
        return False
    waiting = select.poll()
    waiting.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(waiting.poll(0))
