"""Runs h2spec against our HTTP/2 on a port: make h2spec H2SPEC=/path/to/h2spec ARGS="-v http2/6.5"."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import cast

from paramsync.http2.connection import ServerConnection
from paramsync.http2.events import Data, Headers, Lost
from paramsync.http2.headers import STATUS_200
from paramsync.http2.hpack import encoded

_CONTENT = b"hello"


class Answering(asyncio.Protocol):
    """Answers each request with a few bytes, once all of it has come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._http2 = ServerConnection()
        self._transport.write(self._http2.output())

    def data_received(self, data: bytes) -> None:
        now, is_lost = asyncio.get_running_loop().time(), False
        events = self._http2.receive(data, now)
        while self._http2.has_more:
            events += self._http2.receive(b"", now)
        for event in events:
            is_lost |= isinstance(event, Lost)
            if isinstance(event, Data):
                self._http2.consumed(event.stream, len(event.content))
            if isinstance(event, Headers | Data) and event.ended:
                self._http2.respond(event.stream, STATUS_200, _CONTENT, encoded(b"grpc-status", b"0"))
        self._transport.write(self._http2.output())
        if is_lost:
            self._transport.close()


async def main(h2spec: str, arguments: Sequence[str]) -> int:
    """Returns h2spec's exit code: 0 if it found no fault."""
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        process = await asyncio.create_subprocess_exec(h2spec, "-h", "127.0.0.1", "-p", str(port), *arguments)
        return await process.wait()
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2:])))
