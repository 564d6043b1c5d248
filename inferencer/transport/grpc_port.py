"""One port for gRPC: its servicers, health, reflection, and where it listens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from paramsync.rpc.access import Access
from paramsync.rpc.server import SILENT_SECONDS
from paramsync.rpc.tls import ServerTls

from .admission import Admission
from .calls import Calls
from .dispatch import Dispatch
from .grpc_call import Method
from .grpc_connection import GrpcConnection
from .health import Health
from .listeners import Acceptor
from .memory_budget import MemoryBudget
from .reflection import METHOD, Reflection
from .streams import Slots

if TYPE_CHECKING:
    from .predictions import Predictions

QUIET_SECONDS = 0.5  # without a call, after which none is thought to be on its way
_MOST_STREAMS = 512  # which their callers keep open for as long as they please, for each port
_MOST_ANSWERING = 3.0  # seconds of a drain in which calls that come are answered


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
        self._acceptor = Acceptor(lambda: GrpcConnection(self.calls), handshake_seconds=SILENT_SECONDS)

    def take(self, listeners: Iterable[socket.socket], tls: ServerTls | None) -> None:
        """Accept from these once it is started: it takes them over. A UNIX socket speaks no TLS."""
        self._acceptor.take(listeners, None if tls is None else tls.http2_context())

    async def start(self) -> None:
        await self._acceptor.start()

    def stop_listening(self, *, handed_on: bool = False) -> None:
        """See Acceptor.stop."""
        self._acceptor.stop(handed_on=handed_on)

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
