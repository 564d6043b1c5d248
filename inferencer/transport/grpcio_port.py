"""A gRPC port with grpcio's server and our handlers: the fallback if a vulnerability is found in our own server.

docs/under-load.md lists the promises that this port does not keep.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import grpc.aio

from paramsync.errors import RequestError
from paramsync.rpc.access import Caller
from paramsync.rpc.server import options
from paramsync.rpc.tls import ServerTls

from .calls import until_quiet
from .errors import logged_status
from .grpc_port import MOST_ANSWERING
from .grpc_wire import Metadata, Trailers
from .memory_budget import MemoryBudget, MemoryShare
from .methods import Method

_MOST_LEAVING = 20.0  # how long a replaced worker waits for its open calls


class GrpcioPort(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # cannot be subscripted at run time
    """Has the interface of GrpcPort. Lives on the event loop on which it is made."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        budget: MemoryBudget,
        *,
        message_bytes: int,
        connection_seconds: float | None = None,
    ) -> None:
        """The budget counts a request only once its message is complete, because grpcio reports no earlier bytes."""
        chosen = {**dict(options(message_bytes)), "grpc.so_reuseport": 1}  # all workers share the port
        if connection_seconds is not None:
            chosen["grpc.max_connection_age_ms"] = int(1000 * connection_seconds)
        self._server = grpc.aio.server(options=[*chosen.items()])
        self._server.add_generic_rpc_handlers([self])
        self._methods = methods
        self._stopping: asyncio.Future[None] | None = None
        self.open = 0
        """The number of open calls."""
        self.came = 0
        """The number of calls so far."""

    def take(self, listeners: Iterable[socket.socket], tls: ServerTls | None) -> None:
        """Close these listeners and listen at their addresses, because grpcio's server takes no sockets."""
        for listener in listeners:
            where = listener.getsockname()
            with suppress(OSError), listener:  # raised if an earlier worker has already shut the listener down
                listener.shutdown(socket.SHUT_RDWR)
            if listener.family == socket.AF_UNIX:
                self._server.add_insecure_port(f"unix:{where.removesuffix('~')}")
                continue
            address = f"[{where[0]}]:{where[1]}" if listener.family == socket.AF_INET6 else f"{where[0]}:{where[1]}"
            if tls is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, tls.grpc_credentials())

    async def start(self) -> None:
        await self._server.start()

    def awaited(self) -> int:
        """The number of open calls, without the call that asks for it."""
        return max(0, self.open - 1)

    def stop_listening(self, *, handed_on: bool = False) -> None:
        """Refuse new calls. Connections that wait to be accepted are lost, even with `handed_on`."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._server.stop(_MOST_LEAVING if handed_on else None))

    def hurry(self) -> None:
        """Do nothing: grpcio waits for a call's message until the call's deadline."""

    def leave(self) -> int:
        """Return the number of open calls."""
        return self.open

    async def drain(self, *, grace: float, quiet_seconds: float) -> None:
        """See GrpcPort.drain."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await until_quiet(self, quiet_seconds, most=MOST_ANSWERING)
        await self.end(grace - (loop.time() - began))

    async def end(self, grace: float) -> None:
        """Refuse new calls, and wait at most the grace for open calls."""
        await self._server.stop(max(0.0, grace))

    async def stop(self) -> None:
        """End at once."""
        await self._server.stop(None)

    # Calls ------------------------------------------------------------------------------------------------------------

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = self._methods.get(handler_call_details.method)
        if method is None:
            return None  # unimplemented
        if method.predicts:
            return grpc.unary_unary_rpc_method_handler(partial(self._predict, method))
        return grpc.stream_stream_rpc_method_handler(partial(self._respond, method))

    async def _predict(self, method: Method, content: bytes, context: Any) -> bytes:
        call = GrpcioCall(context, content)
        await self._run(method, call)
        return call.response or b""

    async def _respond(self, method: Method, requests: object, context: Any) -> None:
        call = GrpcioCall(context)
        await self._run(method, call)
        if call.response is not None:
            await context.write(call.response)

    async def _run(self, method: Method, call: GrpcioCall) -> None:
        self.open += 1
        self.came += 1
        try:
            if method.admission.looks:
                call.caller = method.admission.admit(call)
            if not (method.is_stream or method.predicts):
                await call.receive()
            await method.run(call)
        except Exception as error:  # noqa: BLE001, the last place before grpcio
            await call.context.abort(*logged_status(error))
        finally:
            self.open -= 1
            if call.share is not None:
                call.share.leave()


class GrpcioCall:
    """A call of grpcio's server with the interface that handlers expect."""

    is_of_newcomer = False

    def __init__(self, context: Any, content: bytes = b"") -> None:
        self.context = context
        self.caller: Caller | None = None
        self.share: MemoryShare | None = None
        self.response: bytes | None = None
        self._content = content

    @property
    def peer(self) -> str:
        return str(self.context.peer())

    @property
    def certificate(self) -> str | None:
        return Caller.of_grpc(self.context, self.peer).certificate

    def time_remaining(self) -> float | None:
        seconds: float | None = self.context.time_remaining()
        return seconds

    def invocation_metadata(self) -> Metadata:
        return tuple(self.context.invocation_metadata() or ())

    def take(self) -> bytes:
        content, self._content = self._content, b""
        return content

    async def receive(self) -> None:
        """Wait for the call's only message. Raises RequestError."""
        content = await self.read()
        if content is None:
            raise RequestError("request: expected one message, found none")
        self._content = content

    async def read(self) -> bytes | None:
        content = await self.context.read()
        return None if content is grpc.aio.EOF else content  # type: ignore[attr-defined]

    async def send_initial_metadata(self, metadata: Trailers = ()) -> None:
        await self.context.send_initial_metadata(metadata)

    async def write(self, content: bytes) -> None:
        await self.context.write(content)

    def answer(self, content: bytes, trailers: Trailers) -> None:
        self.context.set_trailing_metadata(trailers)
        self.response = content

    def finish(self) -> None:
        """Do nothing: grpcio ends the call when its handler returns."""
