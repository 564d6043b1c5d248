"""The HTTP port: TensorFlow Serving's REST API, /healthz and /metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import grpc
from aiohttp import web

from inferencer.batching import Batching
from inferencer.metrics import Metrics
from inferencer.rest.intake import Intake, SlowError, TooLargeError
from inferencer.rest.lookups import metadata_body, status_body
from inferencer.rest.predictions import Asked, Predictions, write
from inferencer.rest.replies import STATUS, Reply, failed
from inferencer.rest.routes import Route, route
from inferencer.rest.undisturbed import Undisturbed
from inferencer.services.errors import status_of
from inferencer.services.models import Models
from inferencer.services.trailers import trailers
from paramsync.addresses import refused
from paramsync.errors import BusyError

_log = logging.getLogger("paramsync.rest")
_THEIRS = logging.getLogger("paramsync.rest.http")
_THEIRS.setLevel(logging.CRITICAL)  # what strangers send that is no HTTP is an error of theirs
_MOST_CONNECTIONS = 1024
_ROOM = 4  # times the limit of one body, for all that are being read
_SMALL = 1 << 16  # bytes that are read, and values that are written, on the event loop itself
_THREADS = 2
_SECONDS = 30.0  # for an answer, as TensorFlow Serving gives one
_MOST_ANSWERING = 3.0  # seconds from the beginning of the end, where requests go on coming
_MOST_REFUSING = 2.0  # seconds after that
_STOPPING = "the server is stopping"
_PATIENCE = 60.0
_LINGERING = 1.0  # for what a client goes on sending of a body that was refused, so that it comes to read why
_METRICS = ("/metrics", "/monitoring/prometheus/metrics")  # the second is where TensorFlow Serving has them
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

_T = TypeVar("_T")


class Rest:
    """One HTTP port. Lives on one event loop."""

    def __init__(
        self,
        models: Models,
        batching: Batching,
        metrics: Metrics,
        *,
        message_bytes: int,
        patience: float = _PATIENCE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`patience` is how many seconds a client may take to send a request, or to read its answer."""
        self._models = models
        self._batching = batching
        self._metrics = metrics
        self._patience = patience
        self._clock = clock
        self._predictions = Predictions(models)
        self._intake = Intake(limit=message_bytes, room=_ROOM * message_bytes, patience=patience)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="rest")
        self._undisturbed = Undisturbed()
        self._draining = False
        self._refusing = False
        self._came = 0
        self._silent: dict[web.RequestHandler, None] = {}  # new connections of which no request came yet, in order
        self._web: web.Server | None = None
        self._listening: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port. Raises SettingsError where it cannot be had."""
        lingering = min(_LINGERING, self._patience / 10)
        self._web = web.Server(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            lingering_time=lingering,
            keepalive_timeout=self._patience,
            logger=_THEIRS,
        )
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(self._connection, host, port)
        except OSError as error:
            raise refused(host, port, "--rest-port") from error
        return int(self._listening.sockets[0].getsockname()[1])

    def drain(self) -> None:
        """/healthz says so from now on, and every answer ends its connection. What comes is still answered."""
        self._draining = True

    async def close(self, *, grace: float, quiet_seconds: float) -> None:
        """Stop within the grace, without a loss.

        A connection that is being made while the port is closed is reset: so that has to happen while nobody calls.

        1. What comes is answered, until nothing did for a while.
        2. Where clients call again and again, they are told to call somebody else, until they do.
        3. The port is closed, then connections that say nothing; what is being answered is answered to its end.
        """
        self.drain()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        if not await self._quiet(quiet_seconds, most=_MOST_ANSWERING):
            self._refusing = True
            await self._quiet(quiet_seconds, most=_MOST_REFUSING)
        if self._listening is not None and self._web is not None:
            self._listening.close()
            self._web.pre_shutdown()
            await self._web.shutdown(max(0.0, end - loop.time()))
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _quiet(self, seconds: float, *, most: float) -> bool:
        """Whether, before too many seconds were over, nothing came for some."""
        loop = asyncio.get_running_loop()
        end = loop.time() + most
        seen = -1
        while seen != self._came and loop.time() < end:
            seen = self._came
            await asyncio.sleep(seconds)
        return seen == self._came

    def _connection(self) -> asyncio.Protocol:
        """For each new connection, which has to say something soon."""
        assert self._web is not None
        if len(self._web.connections) >= _MOST_CONNECTIONS:
            if not self._silent:
                return _Full()
            self._check_silent(next(iter(self._silent)))  # it was given time to say something
        one = self._web()
        self._silent[one] = None
        asyncio.get_running_loop().call_later(self._patience, self._check_silent, one)
        return one

    def _check_silent(self, one: web.RequestHandler) -> None:
        if one in self._silent:
            del self._silent[one]
            one.force_close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._came += 1
        self._silent.pop(request.protocol, None)
        reply = await self._replied(request)
        headers = {"Content-Type": reply.content_type, "Server": "paramsync", **reply.headers}
        response = web.Response(status=reply.status, body=reply.body, headers=headers)
        if reply.last or self._draining:
            response.force_close()
        await response.prepare(request)
        try:
            await asyncio.wait_for(response.write_eof(), self._patience)
        except asyncio.TimeoutError:  # a client that does not read
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _replied(self, request: web.BaseRequest) -> Reply:
        try:
            return await self._answered(request)
        except TooLargeError as error:
            return failed(413, str(error), last=True)
        except SlowError as error:
            return failed(408, str(error), last=True)
        except Exception as error:  # noqa: BLE001, the edge
            code, text = status_of(error)
            if code is grpc.StatusCode.INTERNAL:
                _log.error("a request failed in a way nobody foresaw", exc_info=error)
            return failed(STATUS[code], text, last=isinstance(error, BusyError))

    async def _answered(self, request: web.BaseRequest) -> Reply:
        if self._refusing:
            return failed(503, _STOPPING)
        method = "GET" if request.method == "HEAD" else request.method
        path = request.rel_url.raw_path
        if path == "/healthz" and method == "GET":
            return self._health()
        if path in _METRICS and method == "GET":
            text = await asyncio.to_thread(self._metrics.text)  # it takes milliseconds
            return Reply(200, text, content_type=self._metrics.content_type)
        if not path.lower().startswith("/v1/"):
            return failed(404, f"expected /v1/models/..., /healthz or /metrics, found {request.method} {path[:200]}")
        asked = route(method, path)
        if asked.call == "status":
            return Reply(200, status_body(self._models, asked))
        if asked.call == "metadata":
            return Reply(200, metadata_body(self._models, asked))
        return await self._predicted(asked, request)

    def _health(self) -> Reply:
        if self._draining:
            return failed(503, _STOPPING)
        if waiting := self._models.missing():
            return failed(503, f"not serving yet: {', '.join(waiting)}")
        return Reply(200, b'{"status": "serving"}\n')

    async def _predicted(self, asked: Route, request: web.BaseRequest) -> Reply:
        began = asyncio.get_running_loop().time()
        code, found = grpc.StatusCode.OK, None
        try:
            found = await self._read(asked, request)
            answer = await self._batching.answer(found.question, deadline=began + _SECONDS)
            size = sum(array.size for array in answer.values())
            written, one = found, found.question.resident
            body = await self._aside(size, lambda: write(written, answer))
            names = {name.title(): value for name, value in trailers(one, self._clock())}
            return Reply(200, body, names)
        except BaseException as error:
            code = grpc.StatusCode.CANCELLED if isinstance(error, asyncio.CancelledError) else status_of(error)[0]
            raise
        finally:
            self._metrics.answered(
                model=asked.model,
                signature="" if found is None else found.question.signature,
                version="" if found is None else str(found.question.resident.version.number),
                protocol="rest",
                code=code.name,
                seconds=asyncio.get_running_loop().time() - began,
            )

    async def _read(self, asked: Route, request: web.BaseRequest) -> Asked:
        content = await self._intake.take(request)
        try:
            return await self._aside(len(content), lambda: self._predictions.read(asked, content))
        finally:
            self._intake.release(len(content))

    async def _aside(self, size: int, work: Callable[[], _T]) -> _T:
        """What takes long is done on another thread."""
        if size <= _SMALL:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._undisturbed.run, work)


class _Full(asyncio.Protocol):
    """A connection that there is no room for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(_FULL)
        transport.close()
