"""A gRPC port with our own server: listens, accepts connections, and ends without losing a call."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping

from paramsync.rpc.server import SILENT_SECONDS
from paramsync.rpc.tls import ServerTls

from .calls import Calls, until_quiet
from .connections import Connections
from .grpc_connection import GrpcConnection
from .listeners import Acceptor
from .memory_budget import MemoryBudget
from .methods import Method
from .turns import Turns

QUIET_SECONDS = 0.5  # after this time without a call, no call is expected to be on its way
MOST_ANSWERING = 2.0  # seconds of a drain in which new calls are answered
MOST_LEAVING = 1.0  # seconds after MOST_ANSWERING in which clients that still call are told to leave
_STEP_SECONDS = 0.01
_LAST = 1.0  # seconds at the end of the grace, kept for callers to read their answers


class GrpcPort:
    """A port for gRPC. Lives on the event loop on which it is made."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        budget: MemoryBudget,
        *,
        message_bytes: int,
        connection_seconds: float | None = None,
    ) -> None:
        """See `methods_of` for `methods`, and `Connections` for `connection_seconds`."""
        self.connections = Connections(most_seconds=connection_seconds)
        self.calls = Calls(methods, budget, self.connections, message_bytes=message_bytes)
        self.awaited = self.calls.awaited
        """Returns how many calls may send their message at any moment, or have just sent it."""
        self._turns = Turns(self.connections.loop)
        self._acceptor = Acceptor(self.protocol, handshake_seconds=SILENT_SECONDS)

    def protocol(self) -> GrpcConnection:
        """Make the protocol of one connection."""
        return GrpcConnection(self.calls, self.connections, self._turns)

    def take(self, listeners: Iterable[socket.socket], tls: ServerTls | None) -> None:
        """Take ownership of these listeners, and accept from them after `start`. A UNIX socket speaks no TLS."""
        self._acceptor.take(listeners, None if tls is None else tls.http2_context())

    async def start(self) -> None:
        await self._acceptor.start()

    def stop_listening(self, *, handed_on: bool = False) -> None:
        """Stop accepting. With `handed_on`, another process accepts from the same listeners; see Acceptor.stop."""
        self._acceptor.stop(handed_on=handed_on)

    def hurry(self) -> None:
        """From now on, wait only a few seconds for a call's message."""
        self.calls.read_timeouts.drain()

    def leave(self) -> int:
        """Tell clients to begin no more calls on their connections. Returns the number of connections."""
        return self.connections.leave()

    async def drain(self, *, grace: float, quiet_seconds: float) -> None:
        """End within the grace, without losing a call.

        1. Go on answering calls until all are answered and no new call has come for `quiet_seconds`, but at most
           MOST_ANSWERING seconds.
        2. If calls still come, tell their clients to leave, and go on answering for at most MOST_LEAVING seconds:
           behind a load balancer, a new connection leads to another server.
        3. Stop listening. Refuse new calls, and answer earlier calls.
        4. End each connection once its client has read all answers.
        """
        loop = self.connections.loop
        began = loop.time()
        if not await until_quiet(self.calls, quiet_seconds, most=MOST_ANSWERING):
            last = loop.time() + MOST_LEAVING
            while self.leave() and loop.time() < last:
                await asyncio.sleep(_STEP_SECONDS)
        await self.end(grace - (loop.time() - began))

    async def end(self, grace: float) -> None:
        """Take steps 3 and 4 of `drain`."""
        loop = self.connections.loop
        end = loop.time() + grace
        self.stop_listening()
        self.calls.refuses = True
        await until_quiet(self.calls, 0.0, most=grace - _LAST)
        await self.connections.close(end - loop.time())
        self.calls.read_timeouts.close()

    async def stop(self) -> None:
        """End at once."""
        self.stop_listening()
        await self.connections.abort()
        self.calls.read_timeouts.close()
