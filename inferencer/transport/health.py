"""grpc.health.v1: tells whether the server, and each model, answers predictions now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

from grpc_health.v1 import health_pb2

from paramsync.errors import UnknownModelError
from paramsync.status import EventKind, State

from ..serving.feed import Feed
from ..serving.served import Models

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_CHANGING = (EventKind.SWAPPED,)  # only a swap makes a model serve; handling every event would slow all requests
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """The health of the server (under the name ""), of each model, and of each service. Lives on one event loop.

    The server is SERVING once all models configured at its start serve.

    grpcio's own servicer is not used: it loses watchers when another watcher leaves, and waits for watchers that do
    not read.
    """

    def __init__(self, models: Models, services: Iterable[str]) -> None:
        self._models = models
        self._overall = ("", *services)
        self._follows = False
        self._draining = False
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        """Keep health up to date with the models until cancelled. Before this call, every answer is NOT_SERVING."""
        self._follows = True
        while True:
            others = self._models.changed
            with Feed(self._models.followers(), _CHANGING) as feed:
                while not others.is_set():
                    self.look()
                    await _first(feed.changed(), others.wait())

    def drain(self) -> None:
        """Answer NOT_SERVING from now on, tell the watchers, and end their streams."""
        self._draining = True
        self.look()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        code = self._code(request.service)
        if code == _UNKNOWN:
            raise UnknownModelError(request.service, [model.name for model in self._models])
        return health_pb2.HealthCheckResponse(status=code)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        last = None
        while True:
            changed, code, draining = self._changed, self._code(request.service), self._draining
            if code != last:
                yield health_pb2.HealthCheckResponse(status=code)
            if draining:  # as read above: if the drain began after `_code`, NOT_SERVING must still be sent
                return
            last = code
            await changed.wait()

    def _code(self, service: str) -> int:
        try:
            serves = self._models.find(service).status().state is State.SERVING
        except UnknownModelError:
            if service not in self._overall:
                return int(_UNKNOWN)
            serves = not self._models.missing()
        return int(_SERVING if serves and self._follows and not self._draining else _NOT_SERVING)

    def look(self) -> None:
        """Wake the watchers: each reads its model's state again."""
        self._changed.set()
        self._changed = asyncio.Event()


async def _first(*awaited: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of these coroutines, and cancel the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in awaited]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
