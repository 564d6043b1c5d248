"""The HTTP port: TensorFlow Serving's REST API, KServe's second protocol, /healthz, /metrics, the operator's page."""

from __future__ import annotations

import asyncio
import socket
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import grpc
from aiohttp import web
from google.protobuf.message import Message

from paramsync.errors import BusyError, NotAllowedError, NotServingError, UnauthenticatedError
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident
from paramsync.program.flags import seconds
from paramsync.rpc.access import Access, Effect, effect_of
from paramsync.rpc.server import request_text
from paramsync.rpc.tls import ServerTls
from paramsync.status import Status

from ...batching.batcher import Batcher
from ...serving.access import caller_of, check_host, check_origin
from ...serving.metrics import Metrics
from ...serving.prometheus import CONTENT_TYPE
from ...serving.served import ServedModels, Supervisor, few_at_a_time
from ...settings.settings import Settings, TfServing
from ...transport.errors import is_unforeseen, logged_status, status_of
from ...transport.memory_budget import MemoryBudget, MemoryShare, weight
from ...transport.predictions import trailers
from ..json_arrays import is_small
from ..json_reader import parsed_bytes
from ..kserve.http import JSON_LENGTH, SERVICE, Infer, add_body, body_of, request_of
from ..kserve.service import KServe
from ..page.page import Page
from ..tfs.rest import RestPrediction, metadata_body, route, status_body
from .connections import FULL, Connections
from .intake import KNOWN, EncodingError, Intake
from .replies import STATUS, failed, reply

_WRITTEN = 16  # most bytes of JSON and of Python values for each byte of an answer's arrays
_BESIDE = 2  # copies of the inputs: as arrays, and in TensorFlow
_UNREAD = 2  # copies of an answer: here, and in the kernel
_SMALL = 1 << 14  # bytes: a body up to this size is parsed on the event loop itself
_THREADS = 2
_SECONDS = 30.0  # limit for an answer, as in TensorFlow Serving
_MOST_ANSWERING = 3.0  # seconds: the longest first part of a drain, in which requests are still answered
_MOST_REFUSING = 2.0  # seconds: the longest second part of a drain, in which requests are refused
_STOPPING = "the server is stopping"
_PATIENCE = 60.0  # seconds for a client to send a request, or to read its answer
_HEALTH = "/healthz"
_LAG = seconds(below=1e9)
_METRICS_SECONDS = 10.0  # how long the supervisor may take to add up the counts of all workers
_METRICS = ("/metrics", "/monitoring/prometheus/metrics")  # the second as in TensorFlow Serving

_NAMED = "model_spec"  # a query parameter: if true, the answer names its model, version and signature

_T = TypeVar("_T")


class HttpPort:
    """One HTTP port. Lives on one event loop."""

    def __init__(
        self,
        models: ServedModels,
        batcher: Batcher,
        metrics: Metrics,
        budget: MemoryBudget,
        kserve: KServe,
        access: Access,
        supervisor: Supervisor,
        settings: Settings,
    ) -> None:
        self._models = models
        self._batcher = batcher
        self._metrics = metrics
        self._metrics_paths = (*_METRICS, (settings.tf_serving or TfServing()).metrics_path)
        self._patience = _PATIENCE
        self._kserve = kserve
        self._access = access
        self._counts = few_at_a_time(supervisor)
        self._hosts = settings.allowed_hosts
        self._page = Page(models, supervisor, access)
        self._budget = budget
        self._intake = Intake(self._on_thread, limit=settings.message_bytes, patience=_PATIENCE)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="rest")
        self._leaving = False
        self._draining = False
        self._refusing = False
        self._came = 0
        self._connections = Connections(self._handle, patience=_PATIENCE)

    async def start(self, listeners: Iterable[socket.socket], tls: ServerTls | None) -> None:
        """See Connections.start."""
        await self._connections.start(listeners, tls)

    def leave(self) -> None:
        """Stop listening, because another process has the listeners. From now on every answer ends its connection."""
        self._leaving = True
        self._connections.stop_listening(handed_on=True)

    def __len__(self) -> int:
        """The number of connections."""
        return len(self._connections)

    def drain(self) -> None:
        """From now on /healthz answers 503, and every answer ends its connection. Requests are still answered."""
        self._draining = True

    async def close(self, *, grace: float, quiet_seconds: float) -> None:
        """Stop within the grace, without losing a request.

        Closing the port resets connections that clients are just opening. The port is therefore closed when nobody
        calls:

        1. Answer requests until none has come for a while.
        2. If clients keep calling, refuse their requests, so that they call another server.
        3. Close the port and idle connections, and finish the answers in progress.
        """
        self.drain()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        if not await self._quiet(quiet_seconds, most=_MOST_ANSWERING):
            self._refusing = True
            await self._quiet(quiet_seconds, most=_MOST_REFUSING)
        await self._connections.close(max(0.0, end - loop.time()))
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _quiet(self, seconds: float, *, most: float) -> bool:
        """Wait until no request has come for `seconds`, but at most `most` seconds. Returns whether it became quiet."""
        loop = asyncio.get_running_loop()
        end = loop.time() + most
        seen = -1
        while seen != self._came and loop.time() < end:
            seen = self._came
            await asyncio.sleep(seconds)
        return seen == self._came

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if not self._page.knows(request.rel_url.raw_path):  # the page polls, and would prolong each drain
            self._came += 1
        may_predict = self._connections.asked(request.protocol)
        share = self._budget.share()
        try:
            welcome = may_predict or request.rel_url.raw_path in (_HEALTH, *self._metrics_paths)
            answer = await self._answer(request, share) if welcome else failed(503, FULL, last=True)
            if self._leaving or self._draining:
                answer.force_close()
            await answer.prepare(request)
            try:
                await asyncio.wait_for(answer.write_eof(), self._patience)
            except asyncio.TimeoutError:  # a client that does not read
                if request.transport is not None:
                    request.transport.abort()
            return answer
        finally:
            share.leave()
            self._connections.answered(request.protocol)

    async def _answer(self, request: web.BaseRequest, share: MemoryShare) -> web.Response:
        try:
            return await self._route(request, share)
        except Exception as error:  # noqa: BLE001, the edge
            return _refusal(error)

    async def _route(self, request: web.BaseRequest, share: MemoryShare) -> web.Response:
        method = "GET" if request.method == "HEAD" else request.method
        path = request.rel_url.raw_path
        if path == _HEALTH and method == "GET":
            check_host(f"GET {path}", request, self._access, self._hosts)
            return self._health(request.rel_url.query.get("max_lag"))
        if self._refusing and not path.lower().startswith(("/v1/", "/v2")):
            return failed(503, _STOPPING)
        asked_kserve = request_of(method, path) if path == "/v2" or path.startswith("/v2/") else None
        self._check(request, None if asked_kserve is None else asked_kserve[0])
        if path in self._metrics_paths and method == "GET":
            text = await asyncio.wait_for(self._counts("metrics"), _METRICS_SECONDS)
            return reply(200, text, {"Content-Type": CONTENT_TYPE})
        if asked_kserve is not None:
            call, message = asked_kserve
            if call == "ModelInfer":
                infer = Infer(self._models, message, request.headers.get(JSON_LENGTH))
                return await self._predict(infer, request, share)
            return await self._call(call, message, request, share)
        if self._page.knows(path):
            content = b""
            if request.method == "POST" and not self._page.is_file(path):  # for a file, no body is read
                async with self._intake.body(request, share) as content:
                    pass
            return await self._page.answer(request, content)
        if not path.lower().startswith("/v1/"):
            found = f"{request.method} {path[:200]}"
            return failed(404, f"expected /v1/models/..., /v2/..., /healthz or /metrics, found {found}")
        asked = route(method, path)
        if asked.call not in ("status", "metadata"):
            named = request.query.get(_NAMED, "false").lower() not in ("false", "0")
            return await self._predict(RestPrediction(self._models, asked, named=named), request, share)
        if self._refusing:
            return failed(503, _STOPPING)
        body = status_body if asked.call == "status" else metadata_body
        return reply(200, await self._on_thread(lambda: body(self._models, asked)))

    def _check(self, request: web.BaseRequest, call: str | None) -> None:
        """Check that the caller may send this request. `call` names the KServe call, if the request is such a call.

        Raises NotAllowedError, UnauthenticatedError.
        """
        is_file = self._page.is_file(request.rel_url.raw_path)
        effect = Effect.HEALTH if is_file else _effect(request, call)  # a browser that loads the page has no token yet
        what, caller = f"{request.method} {request.rel_url.raw_path[:200]}", caller_of(request)
        if effect is not Effect.CHANGES:
            check_host(what, request, self._access, self._hosts)
        if not self._access.looks_at(effect):
            return
        if effect is not Effect.CHANGES:
            self._access.check_read(what, caller)
            return
        self._access.check(what, caller)
        with self._access.refusals(what, caller):
            check_origin(what, request, self._access, self._hosts)

    def _health(self, max_lag: str | None) -> web.Response:
        if self._draining:
            return failed(503, _STOPPING)
        if waiting := self._models.missing():
            names = (f"{name} ({why})" if why else name for name, why in waiting.items())
            return failed(503, f"not serving yet: {', '.join(names)}")
        if max_lag is not None:
            try:
                most = _LAG(max_lag)
            except ArgumentTypeError as error:
                return failed(400, f"max_lag: {error}")
            if late := [model.name for model in self._models if _lag(model.status()) > most]:
                return failed(503, f"more than {most:g} s behind: {', '.join(late)}")
        return reply(200, b'{"status": "serving"}\n')

    async def _predict(
        self, call: RestPrediction | Infer, request: web.BaseRequest, share: MemoryShare
    ) -> web.Response:
        began = asyncio.get_running_loop().time()
        code, resident, signature, unforeseen = grpc.StatusCode.CANCELLED, None, "", False
        try:
            self._check_refusing(call.model)
            async with self._intake.body(request, share) as content:
                resident = call.take()
                question = await self._read(call, resident, content, share)
                small = len(content) <= _SMALL  # an answer repeats parts of the body, such as an id
            del content
            signature = question.signature
            share.need(max(share.size, _BESIDE * weight(question.inputs)))
            try:
                answer = await self._batcher.answer(question, deadline=began + _SECONDS)
            finally:
                resident = question.resident
            body, headers = await self._write(call, question, answer, share, small=small)
            response = reply(200, body, {**self._headers(resident), **headers})
            code = grpc.StatusCode.OK
        except Exception as error:  # noqa: BLE001, the edge
            code, unforeseen = status_of(error)[0], is_unforeseen(error)
            return _refusal(error, None if resident is None else self._headers(resident))
        else:
            return response
        finally:
            seconds = asyncio.get_running_loop().time() - began
            version = "" if resident is None else str(resident.version.number)
            self._metrics.answered(
                model=call.model,
                signature=signature,
                version=version,
                protocol=call.protocol,
                code=code.name,
                seconds=seconds,
                unforeseen=unforeseen,
            )
            if self._metrics.spans is not None:
                requested = partial(self._metrics.spans.requested, call.route, request.headers, status=STATUS[code])
                requested = partial(requested, model=call.model, signature=signature, version=version, seconds=seconds)
                asyncio.get_running_loop().call_soon(requested)  # after the answer is sent

    async def _call(self, call: str, message: Message, request: web.BaseRequest, share: MemoryShare) -> web.Response:
        """Answer a call of KServe's gRPC service as JSON."""
        if self._refusing or (self._draining and call == "ServerReady"):
            return failed(503, _STOPPING)
        if request.method == "POST":
            async with self._intake.body(request, share) as content:
                await self._intake.room(share, len(content) + parsed_bytes(content))
                await self._on_thread(lambda: add_body(message, content))
        if effect_of(f"{SERVICE}/{call}") is not Effect.CHANGES:
            answer = await getattr(self._kserve, call)(message, _Caller())
            return reply(200 if getattr(answer, "ready", True) else 503, body_of(answer))
        with self._access.audited(f"{SERVICE}/{call}", caller_of(request), request_text(message)):
            return reply(200, body_of(await getattr(self._kserve, call)(message, _Caller())))

    def _check_refusing(self, model: str) -> None:
        if self._refusing:
            raise NotServingError(model, _STOPPING)

    async def _read(
        self, call: RestPrediction | Infer, resident: Resident, content: bytes, share: MemoryShare
    ) -> Question:
        await self._intake.room(share, len(content) + call.bytes_to_read(content))
        if len(content) <= _SMALL:
            return call.read(resident, content)
        question = await self._on_thread(lambda: call.read(resident, content))
        share.keep(_BESIDE * weight(question.inputs))
        return question

    async def _write(
        self, call: RestPrediction | Infer, question: Question, answer: Answer, share: MemoryShare, *, small: bool
    ) -> tuple[bytes, Mapping[str, str]]:
        if small and is_small(answer):
            return call.write(question, answer)
        share.more(_WRITTEN * weight(answer))
        body, headers = await self._on_thread(lambda: call.write(question, answer))
        share.keep(_UNREAD * len(body))
        return body, headers

    def _headers(self, resident: Resident) -> dict[str, str]:
        return {name.title(): value for name, value in trailers(resident, time.time())}

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        """Run long work off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _lag(status: Status) -> float:
    """Seconds since a newer version was published, or came into the bucket; 0 for a pinned model."""
    waiting_since = status.bucket.waiting_since if status.bucket else None
    since = 0.0 if waiting_since is None else time.time() - waiting_since
    return 0.0 if status.pinned is not None else max(status.lag_seconds or 0.0, since)


def _effect(request: web.BaseRequest, call: str | None) -> Effect:
    """Return what a request may do. It counts as a change unless it is a GET, a prediction, or a call that reads."""
    if call is not None:
        return effect_of(f"{SERVICE}/{call}")
    reads = request.method in ("GET", "HEAD") or request.rel_url.raw_path.lower().startswith("/v1/")
    return Effect.READS if reads else Effect.CHANGES


class _Caller:
    """The context of a call for the gRPC servicer. HTTP has no deadlines, so the limit of this port applies."""

    def time_remaining(self) -> float:
        return _SECONDS


def _refusal(error: Exception, headers: Mapping[str, str] | None = None) -> web.Response:
    code, text = logged_status(error)
    status = getattr(error, "http_status", None)
    if isinstance(error, UnauthenticatedError):
        headers = {**(headers or {}), "WWW-Authenticate": "Bearer"}
    if isinstance(error, EncodingError):
        headers = {**(headers or {}), "Accept-Encoding": KNOWN}
    # After these errors the body may be unread: an open connection would take the rest of the body for a request.
    last = status is not None or isinstance(error, (BusyError, NotAllowedError))
    return failed(status or STATUS[code], text, headers, last=last)
