"""One port for gRPC: its servicers, health, reflection, and the limits that keep it open for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from paramsync.errors import SettingsError
from paramsync.host.tcp_connections import peer_address
from paramsync.rpc.access import Access
from paramsync.rpc.addresses import address, refused
from paramsync.rpc.connection_limit import ConnectionLimit
from paramsync.rpc.tls import ServerTls

from . import accepting
from .dispatch import Dispatch
from .drain import Drain
from .health import Health
from .leaving import Goodbye
from .memory_budget import MemoryBudget
from .read_timeout import ReadTimeouts
from .reflection import add_reflection
from .streams import Slots

if TYPE_CHECKING:
    from .predictions import Predictions

_MOST_CALLS = 1 << 13  # of all kinds, for each port: only answers that nobody reads can be so many
_MOST_SILENT = 1 << 10  # whose messages did not come, for each port
_MOST_STREAMS = 512  # which their callers keep open for as long as they please, for each port


class GrpcPort:
    """One port for gRPC, with health and reflection. Lives on one event loop."""

    def __init__(
        self,
        servicers: Mapping[ServiceDescriptor, Any],
        health: Health,
        budget: MemoryBudget,
        draining: asyncio.Event,
        access: Access,
        *,
        answering: Predictions | None = None,
        channel_options: Sequence[tuple[str, Any]],
    ) -> None:
        self.drain = Drain()
        self.server = accepting.server([self.drain], options=channel_options, most=_MOST_CALLS)
        streams, self.read_timeouts = Slots(_MOST_STREAMS, "streams"), ReadTimeouts(_MOST_SILENT, budget)
        self._connections = ConnectionLimit()
        servicers = {**servicers, health_pb2.DESCRIPTOR.services_by_name["Health"]: health}
        for service, servicer in servicers.items():
            dispatch = Dispatch(
                servicer, service, answering, streams, self.read_timeouts, self.drain, self._connections, access
            )
            self.server.add_generic_rpc_handlers((dispatch,))
        add_reflection([one.full_name for one in servicers], self.server, draining, streams, self.read_timeouts, access)

        self.places: list[int | str] = []
        """Where it listens: ports, and the path of a UNIX socket."""
        self._plain: list[int | str] = []
        """Such as speak no TLS."""
        self._socket: Path | None = None

    def bind(self, host: str, port: int, option: str, tls: ServerTls | None) -> int:
        """Returns the port. Raises SettingsError where it cannot be had."""
        where = address(host, port)
        try:
            if tls is None:
                bound = self.server.add_insecure_port(where)
                self._plain.append(bound)
            else:
                bound = self.server.add_secure_port(where, tls.grpc_credentials())
        except RuntimeError as error:
            raise refused(host, port, option) from error
        self.places.append(bound)
        self._look_after(bound)
        return bound

    def bind_socket(self, path: Path) -> None:
        """Another process that listens there keeps its connections, and gets no new ones. Raises SettingsError."""
        beside = Path(f"{path}~")  # gRPC takes it away when it ends: the path may be another process's by then
        try:
            if path.exists() and not path.is_socket():
                raise FileExistsError(path)
            self.server.add_insecure_port(f"unix:{beside}")
            self._socket_id = beside.stat().st_ino
            beside.replace(path)
        except (RuntimeError, OSError) as error:
            raise SettingsError(f"--grpc_socket_path {path}: cannot listen there; choose another path") from error
        self.places.append(str(beside))
        self._plain.append(str(beside))
        self._socket = path

    def _look_after(self, port: int) -> None:
        self.read_timeouts.coming.port = port
        self._connections.start(port)

    def close(self) -> None:
        """End its threads. The port is closed by now."""
        self.read_timeouts.close()
        self._connections.close()
        with suppress(OSError):
            if self._socket is not None and self._socket.stat().st_ino == self._socket_id:
                self._socket.unlink()

    def goodbye(self) -> Goodbye:
        return Goodbye(self.places, self._plain, lambda: {peer_address(peer) for peer in self.drain.peers})
