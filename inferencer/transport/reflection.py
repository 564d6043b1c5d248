"""Server reflection. Its streams end when the server drains, because callers could keep them open for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing

from grpc_reflection.v1alpha import reflection, reflection_pb2

from .methods import Call
from .partial_parsing import read
from .streams import until

METHOD = f"{reflection.SERVICE_NAME}/ServerReflectionInfo"


class Reflection:
    """Lists the services of a port, including the reflection service itself."""

    def __init__(self, services: Iterable[str], draining: asyncio.Event) -> None:
        self._draining = draining
        self._servicer = reflection.aio.ReflectionServicer(  # type: ignore[attr-defined]  # its stubs lack it
            [*services, reflection.SERVICE_NAME]
        )

    async def respond(self, call: Call) -> AsyncGenerator[bytes, None]:
        async with aclosing(until(self._draining, call.read)) as contents:
            async for response in self._servicer.ServerReflectionInfo(_requests(contents), call):
                yield response.SerializeToString()


async def _requests(contents: AsyncIterator[bytes]) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
    async for content in contents:
        yield read(reflection_pb2.ServerReflectionRequest, content)
