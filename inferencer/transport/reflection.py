"""Server reflection that ends when the server drains: callers keep its stream open for as long as they please."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from paramsync.errors import BusyError
from paramsync.rpc.access import Access

from .admission import Admission
from .errors import abort
from .read_timeout import ReadTimeouts
from .streams import Slots, until


def add_reflection(
    services: Iterable[str],
    server: grpc.aio.Server,
    draining: asyncio.Event,
    streams: Slots,
    read_timeouts: ReadTimeouts,
    access: Access,
) -> None:
    """Tell which services there are, itself among them."""
    servicer = _Reflection([*services, reflection.SERVICE_NAME], draining, streams, read_timeouts, access)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[name-defined]  # its stubs lack it
    def __init__(
        self,
        services: Iterable[str],
        draining: asyncio.Event,
        streams: Slots,
        read_timeouts: ReadTimeouts,
        access: Access,
    ) -> None:
        super().__init__(services)
        self._draining = draining
        self._streams = streams
        self._read_timeouts = read_timeouts
        self._admission = Admission(access, f"{reflection.SERVICE_NAME}/ServerReflectionInfo")

    async def ServerReflectionInfo(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        peer = context.peer()  # never later: see Dispatch
        if self._admission.looks:
            await self._admission.admit(context, peer)
        try:
            with self._streams.one(peer), self._read_timeouts.open(context, peer) as ended:
                asked = until((self._draining, ended), lambda: self._next(requests, context))
                async for response in super().ServerReflectionInfo(asked, context):
                    yield response
                if ended.is_set():
                    raise self._read_timeouts.busy()
        except BusyError as error:
            await abort(error, context)

    async def _next(self, requests: Any, context: Any) -> Any:
        if (one := await anext(requests, None)) is not None:
            self._read_timeouts.came(context, one.ByteSize())
        return one
