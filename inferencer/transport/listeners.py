"""Listening sockets, at every address of a host or at a path, and an acceptor of their connections."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from paramsync.errors import SettingsError
from paramsync.rpc.addresses import ABSENT, refused

WAITING = 4096  # most connections that the kernel keeps until this process accepts them
_AT_ONCE = 4  # most connections accepted in one turn of the event loop
_AGAIN = 10.0  # seconds until the same error of an event loop is logged again
_log = logging.getLogger("paramsync.loop")


def listeners_at(host: str, port: int, option: str, *, shared: bool = False) -> list[socket.socket]:
    """Listen at one port, at every address of the host that this machine has. If the port is `shared`, other processes
    may listen there, too. Raises SettingsError."""
    found: list[socket.socket] = []
    absent: OSError | None = None
    with ExitStack() as until_failure:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, where in infos:
                try:
                    listener = _listening(family, (where[0], port, *where[2:]), shared=shared, alone=len(infos) == 1)
                except OSError as error:
                    if error.errno not in ABSENT:
                        raise
                    absent = error
                else:
                    found.append(until_failure.enter_context(listener))
                    port = port_of(found)
            if absent is not None and not found:
                raise absent
        except OSError as error:
            raise refused(host, port, option) from error
        until_failure.pop_all()
    return found


def listener_on(path: Path) -> socket.socket:
    """Listen on a UNIX socket. A process that listened there before keeps its connections and gets no new connections.

    Raises SettingsError.
    """
    beside = Path(f"{path}~")
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.exists() and not path.is_socket():
            raise FileExistsError(path)
        beside.unlink(missing_ok=True)
        listener.bind(str(beside))
        listener.listen(WAITING)
        beside.replace(path)
    except OSError as error:
        listener.close()
        raise SettingsError(f"--grpc_socket_path {path}: cannot listen there; choose another path") from error
    return listener


def port_of(listeners: Iterable[socket.socket]) -> int:
    """Return the port of these listeners; 0 if there are none."""
    return next((int(one.getsockname()[1]) for one in listeners), 0)


class Acceptor:
    """Accepts connections, and makes a protocol for each connection. Lives on one event loop."""

    def __init__(self, protocol: Callable[[], asyncio.BaseProtocol], *, handshake_seconds: float) -> None:
        """A TLS handshake may take `handshake_seconds`."""
        self._protocol = protocol
        self._handshake_seconds = handshake_seconds
        self._listeners: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._servers: list[asyncio.Server] = []

    def take(self, listeners: Iterable[socket.socket], context: ssl.SSLContext | None) -> None:
        """Take ownership of these listeners. Call this before `start`. A UNIX socket speaks no TLS."""
        for one in listeners:
            tls = None if one.family == socket.AF_UNIX else context
            self._listeners.append((_Listener(fileno=one.detach()), tls))

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        # asyncio's own handler logs a traceback for each connection that cannot be accepted.
        if loop.get_exception_handler() is None:
            loop.set_exception_handler(RareErrors())
        for listener, context in self._listeners:
            create = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
            handshake_seconds = None if context is None else self._handshake_seconds
            server: asyncio.Server = await create(
                self._protocol,
                sock=listener,
                backlog=_AT_ONCE,
                ssl=context,
                ssl_handshake_timeout=handshake_seconds,
            )
            self._servers.append(server)

    def stop(self, *, handed_on: bool = False) -> None:
        """Stop accepting, and refuse connections that wait to be accepted.

        A UNIX socket refuses its waiting connections only once all processes have closed the socket. If `handed_on`,
        nothing is refused: another process accepts the waiting connections from the same listeners.
        """
        listeners, servers = self._listeners, self._servers
        self._listeners, self._servers = [], []

        def close() -> None:
            for server in servers:
                server.close()
            for listener, _ in listeners:
                listener.close()

        if handed_on:
            loop = asyncio.get_running_loop()
            for listener, _ in listeners:
                loop.remove_reader(listener)
            loop.call_soon(close)  # later, because now asyncio would drop connections that it accepted in this turn
            return
        for listener, _ in listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        close()


class RareErrors:
    """An exception handler that logs equal errors rarely. When file descriptors run out, asyncio reports hundreds of
    errors a second."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], float] = {}
        self._left_out = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        key = (str(context.get("message", "")), type(error).__name__)
        now = loop.time()
        self._logged = {known: when for known, when in self._logged.items() if now - when < _AGAIN}
        if key in self._logged:
            self._left_out += 1
            return
        self._logged[key] = now
        more = f" ({self._left_out} more like this were left out)" if self._left_out else ""
        self._left_out = 0
        if isinstance(error, OSError):  # the machine is at fault: a traceback would not help
            _log.error("%s: %s%s", key[0], error, more)
        else:
            _log.error("%s%s", key[0], more, exc_info=error)


class _Listener(socket.socket):
    """Keeps the kernel's queue long. asyncio would shorten it to `_AT_ONCE`, because it uses one number for both."""

    def listen(self, backlog: int = WAITING) -> None:
        super().listen(WAITING)


def _listening(family: int, where: tuple[Any, ...], *, shared: bool, alone: bool) -> socket.socket:
    """Open a listening socket. Raises OSError."""
    # IPPROTO_TCP is named because asyncio otherwise leaves Nagle's algorithm on.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not alone)
        listener.bind(where)
        listener.listen(WAITING)
    except OSError:
        listener.close()
        raise
    return listener
