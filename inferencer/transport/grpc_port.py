"""One port for gRPC: its servicers, health, reflection, and where it listens."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from paramsync.errors import SettingsError
from paramsync.rpc.access import Access
from paramsync.rpc.addresses import refused
from paramsync.rpc.server import SILENT_SECONDS
from paramsync.rpc.tls import ServerTls

from .admission import Admission
from .calls import Calls
from .dispatch import Dispatch
from .grpc_call import Method
from .grpc_connection import GrpcConnection
from .health import Health
from .memory_budget import MemoryBudget
from .reflection import METHOD, Reflection
from .streams import Slots

if TYPE_CHECKING:
    from .predictions import Predictions

QUIET_SECONDS = 0.5  # without a call, after which none is thought to be on its way
_MOST_STREAMS = 512  # which their callers keep open for as long as they please, for each port
_MOST_ANSWERING = 3.0  # seconds of a drain in which calls that come are answered
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # a name may have addresses of a family that is switched off
_WAITING = 4096  # whom the kernel keeps until they are accepted
_AT_ONCE = 64  # are accepted, before others have their turn


class GrpcPort:
    """One port for gRPC, with health and reflection. Lives on the event loop on which it is made."""

    def __init__(
        self,
        servicers: Mapping[ServiceDescriptor, Any],
        health: Health,
        budget: MemoryBudget,
        draining: asyncio.Event,
        access: Access,
        *,
        message_bytes: int,
        answering: Predictions | None = None,
        connection_seconds: float | None = None,
    ) -> None:
        """After so many seconds a connection is to be left for another."""
        dispatch = Dispatch(answering, Slots(_MOST_STREAMS, "streams"), access)
        servicers = {**servicers, health_pb2.DESCRIPTOR.services_by_name["Health"]: health}
        methods = {
            path: method
            for service, servicer in servicers.items()
            for path, method in dispatch.methods(servicer, service)
        }
        reflection = Reflection([service.full_name for service in servicers], draining)
        methods[f"/{METHOD}"] = Method(dispatch.stream(reflection.respond), Admission(access, METHOD), is_stream=True)
        self.calls = Calls(methods, budget, message_bytes=message_bytes, connection_seconds=connection_seconds)
        self._listeners: list[tuple[socket.socket, ServerTls | None]] = []
        self._accepting: list[asyncio.Server] = []
        self._path: tuple[Path, int] | None = None

    def bind(self, host: str, port: int, option: str, tls: ServerTls | None, *, shared: bool = False) -> int:
        """At every address of the host that this machine has. Returns the port, which other processes may listen at too
        where it is `shared`.

        Raises SettingsError where it cannot be had.
        """
        absent: OSError | None = None
        found = False
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, where in infos:
                try:
                    listener = _listening(family, (where[0], port, *where[2:]), shared=shared, alone=len(infos) == 1)
                except OSError as error:
                    if error.errno not in _ABSENT:
                        raise
                    absent = error
                else:
                    self._listeners.append((listener, tls))
                    port, found = listener.getsockname()[1], True
            if absent is not None and not found:
                raise absent
        except OSError as error:
            raise refused(host, port, option) from error
        return port

    def bind_socket(self, path: Path) -> None:
        """Another process that listens there keeps its connections, and gets no new ones. Raises SettingsError."""
        beside = Path(f"{path}~")
        try:
            if path.exists() and not path.is_socket():
                raise FileExistsError(path)
            beside.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            self._listeners.append((listener, None))
            listener.bind(str(beside))
            listener.listen(_WAITING)
            self._path = path, beside.stat().st_ino
            beside.replace(path)
        except OSError as error:
            raise SettingsError(f"--grpc_socket_path {path}: cannot listen there; choose another path") from error

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for listener, tls in self._listeners:
            create = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
            server: asyncio.Server = await create(
                lambda: GrpcConnection(self.calls),
                sock=listener,
                backlog=_AT_ONCE,
                ssl=None if tls is None else tls.http2_context(),
                ssl_handshake_timeout=None if tls is None else SILENT_SECONDS,
            )
            # so many wait, and so many are accepted at a time: asyncio has one number for both
            listener.listen(_WAITING)
            self._accepting.append(server)

    def listening(self) -> Iterator[socket.socket]:
        return (listener for listener, _ in self._listeners)

    def stop_listening(self) -> None:
        for server in self._accepting:
            server.close()
        for listener, _ in self._listeners:
            listener.close()
        self._accepting, self._listeners = [], []
        with suppress(OSError):
            if self._path is not None and self._path[0].stat().st_ino == self._path[1]:
                self._path[0].unlink()

    async def drain(self, *, grace: float, quiet_seconds: float) -> None:
        """End within the grace, without a loss.

        1. What comes is answered, until nothing did for a while and all has been answered, or for some seconds.
        2. It listens no more. Calls that come after that are refused; what was taken up before is answered.
        3. Every connection ends once its other end has read all.
        """
        began = self.calls.loop.time()
        await self.calls.quiet(quiet_seconds, most=_MOST_ANSWERING)
        await self.end(grace - (self.calls.loop.time() - began))

    async def end(self, grace: float) -> None:
        """The last two of these steps."""
        self.stop_listening()
        await self.calls.drain(grace)

    async def stop(self) -> None:
        """At once."""
        self.stop_listening()
        await self.calls.stop()


def _listening(family: int, where: tuple[Any, ...], *, shared: bool, alone: bool) -> socket.socket:
    """Raises OSError."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not alone)
        listener.bind(where)
        listener.listen(_WAITING)
    except OSError:
        listener.close()
        raise
    return listener
