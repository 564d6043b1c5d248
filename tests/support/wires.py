"""A gRPC connection whose transport and clock belong to the test."""

from __future__ import annotations

import asyncio
from typing import Any

from inferencer.transport.grpc_connection import GrpcConnection


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time is set by the test."""

    now = 0.0

    def time(self) -> float:
        return self.now


class Wire(asyncio.Transport):
    """A transport to a client that reads at once all bytes within its windows."""

    def __init__(self, protocol: GrpcConnection) -> None:
        super().__init__()
        self.protocol = protocol
        self.is_open = True
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self.is_open:
            self.is_open = False
            self.protocol.connection_lost(None)


def feed(protocol: GrpcConnection, content: bytes) -> None:
    """Give a client's bytes to the protocol, as in a turn of the event loop without other input."""
    while content:
        room = protocol.get_buffer(-1)
        size = min(len(room), len(content))
        room[:size] = content[:size]
        protocol.buffer_updated(size)
        while protocol.waits:
            protocol.serve()
        content = content[size:]
