"""The HTTP port: TensorFlow Serving's REST API, KServe's second protocol, /healthz and /metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import grpc
from aiohttp import web
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

from paramsync.errors import BusyError, NotServingError
from paramsync.inference.questions import Question
from paramsync.inference.resident import Resident

from ...batching.batcher import Batching
from ...serving.metrics import Metrics
from ...serving.served import Models
from ...transport.errors import status_of
from ...transport.memory_budget import MemoryBudget, MemoryShare, weight
from ...transport.trailers import trailers
from ..json_arrays import is_small
from ..json_reader import parsed_bytes
from ..kserve.http import JSON_LENGTH, Infer, add_body, body_of, request_of
from ..kserve.service import KServe
from ..tfs.metadata import FIELD, metadata
from ..tfs.model_service import states
from .connections import FULL, Connections, response
from .intake import KNOWN, EncodingError, Intake, SlowError, TooLargeError
from .predictions import Prediction, Route, route
from .replies import STATUS, Reply, failed

_log = logging.getLogger("paramsync.rest")
_WRITTEN = 16  # bytes of JSON that a byte of an answer becomes at most, with what it is made of: more for few
_BESIDE = 2  # values as arrays, and as TensorFlow has them
_UNREAD = 2  # an answer as bytes, and as the kernel has them
_SMALL = 1 << 14  # bytes that are read on the event loop itself
_THREADS = 2
_SECONDS = 30.0  # for an answer, as TensorFlow Serving gives one
_MOST_ANSWERING = 3.0  # seconds from the beginning of the end, where requests go on coming
_MOST_REFUSING = 2.0  # seconds after that
_STOPPING = "the server is stopping"
_PATIENCE = 60.0
_HEALTH = "/healthz"
_METRICS = ("/metrics", "/monitoring/prometheus/metrics")  # the second is where TensorFlow Serving has them

_NAMED = "model_spec"  # in the query of a request whose answer is to have it
_EARLY = {TooLargeError: 413, SlowError: 408, EncodingError: 415}

_T = TypeVar("_T")


class Rest:
    """One HTTP port. Lives on one event loop."""

    def __init__(
        self,
        models: Models,
        batching: Batching,
        metrics: Metrics,
        room: MemoryBudget,
        kserve: KServe,
        *,
        message_bytes: int,
        metrics_path: str | None = None,
        patience: float = _PATIENCE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`metrics_path` is where the metrics are besides; `patience` is how many seconds a client may take to send a
        request, or to read its answer."""
        self._models = models
        self._batching = batching
        self._metrics = metrics
        self._metrics_paths = (*_METRICS, metrics_path)
        self._patience = patience
        self._clock = clock
        self._kserve = kserve
        self._room = room
        self._intake = Intake(self._aside, limit=message_bytes, patience=patience)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="rest")
        self._draining = False
        self._refusing = False
        self._came = 0
        self._connections = Connections(self._handle, patience=patience)

    async def start(self, host: str, port: int) -> int:
        """Listen. See Connections."""
        return await self._connections.listen(host, port)

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
        await self._connections.close(max(0.0, end - loop.time()))
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

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._came += 1
        may_predict = self._connections.asked(request.protocol)
        share = self._room.share()
        try:
            welcome = may_predict or request.rel_url.raw_path in (_HEALTH, *self._metrics_paths)
            answer = response(await self._replied(request, share) if welcome else FULL)
            if self._draining:
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

    async def _replied(self, request: web.BaseRequest, share: MemoryShare) -> Reply:
        try:
            return await self._answered(request, share)
        except Exception as error:  # noqa: BLE001, the edge
            return _refusal(error)

    async def _answered(self, request: web.BaseRequest, share: MemoryShare) -> Reply:
        method = "GET" if request.method == "HEAD" else request.method
        path = request.rel_url.raw_path
        if path == _HEALTH and method == "GET":
            return self._health()
        if self._refusing and not path.lower().startswith(("/v1/", "/v2")):
            return failed(503, _STOPPING)
        if path in self._metrics_paths and method == "GET":
            text = await asyncio.to_thread(self._metrics.text)  # it takes milliseconds
            return Reply(200, text, content_type=self._metrics.content_type)
        if path == "/v2" or path.startswith("/v2/"):
            call, message = request_of(method, path)
            if call == "ModelInfer":
                infer = Infer(self._models, message, request.headers.get(JSON_LENGTH))
                return await self._predicted(infer, request, share)
            return await self._called(call, message, request, share)
        if not path.lower().startswith("/v1/"):
            found = f"{request.method} {path[:200]}"
            return failed(404, f"expected /v1/models/..., /v2/..., /healthz or /metrics, found {found}")
        asked = route(method, path)
        if asked.call not in ("status", "metadata"):
            named = request.query.get(_NAMED, "false").lower() not in ("false", "0")
            return await self._predicted(Prediction(self._models, asked, named=named), request, share)
        if self._refusing:
            return failed(503, _STOPPING)
        body = status_body if asked.call == "status" else metadata_body
        return Reply(200, await self._aside(lambda: body(self._models, asked)))

    def _health(self) -> Reply:
        if self._draining:
            return failed(503, _STOPPING)
        if waiting := self._models.missing():
            told = (f"{name} ({why})" if why else name for name, why in waiting.items())
            return failed(503, f"not serving yet: {', '.join(told)}")
        return Reply(200, b'{"status": "serving"}\n')

    async def _predicted(self, asked: Prediction | Infer, request: web.BaseRequest, share: MemoryShare) -> Reply:
        began = asyncio.get_running_loop().time()
        code, one, signature = grpc.StatusCode.CANCELLED, None, ""
        try:
            self._check_refusing(asked.model)
            async with self._intake.body(request, share) as content:
                one = asked.take()
                question = await self._read(asked, one, content, share)
            del content
            signature = question.signature
            body, headers = await self._written(asked, question, began + _SECONDS, share)
            reply = Reply(200, body, {**self._said(one), **headers})
            code = grpc.StatusCode.OK
        except Exception as error:  # noqa: BLE001, the edge
            code, _ = status_of(error)
            return _refusal(error, {} if one is None else self._said(one))
        else:
            return reply
        finally:
            self._metrics.answered(
                model=asked.model,
                signature=signature,
                version="" if one is None else str(one.version.number),
                protocol=asked.protocol,
                code=code.name,
                seconds=asyncio.get_running_loop().time() - began,
            )

    async def _called(self, call: str, message: Message, request: web.BaseRequest, share: MemoryShare) -> Reply:
        """A call of KServe's gRPC service, answered as JSON."""
        if self._refusing or (self._draining and call == "ServerReady"):
            return failed(503, _STOPPING)
        if request.method == "POST":
            async with self._intake.body(request, share) as content:
                self._intake.need(share, len(content) + parsed_bytes(content))
                await self._aside(lambda: add_body(message, content))
        answer = await getattr(self._kserve, call)(message, _Caller())
        return Reply(200 if getattr(answer, "ready", True) else 503, body_of(answer))

    def _check_refusing(self, model: str) -> None:
        if self._refusing:
            raise NotServingError(model, _STOPPING)

    async def _read(self, asked: Prediction | Infer, one: Resident, content: bytes, share: MemoryShare) -> Question:
        self._intake.need(share, len(content) + asked.bytes_to_read(content))
        if len(content) <= _SMALL:
            return asked.read(one, content)
        question = await self._aside(lambda: asked.read(one, content))
        share.keep(_BESIDE * weight(question.inputs))
        return question

    async def _written(
        self, asked: Prediction | Infer, question: Question, deadline: float, share: MemoryShare
    ) -> tuple[bytes, Mapping[str, str]]:
        share.need(max(share.size, _BESIDE * weight(question.inputs)))
        answer = await self._batching.answer(question, deadline=deadline)
        if is_small(answer):
            return asked.write(question, answer)
        share.more(_WRITTEN * weight(answer))
        body, headers = await self._aside(lambda: asked.write(question, answer))
        share.keep(_UNREAD * len(body))
        return body, headers

    def _said(self, one: Resident) -> dict[str, str]:
        return {name.title(): value for name, value in trailers(one, self._clock())}

    async def _aside(self, work: Callable[[], _T]) -> _T:
        """What takes long is done on another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class _Caller:
    """What a call of the gRPC service asks about its caller, who gives no deadline by HTTP."""

    def time_remaining(self) -> float:
        return _SECONDS


def _refusal(error: Exception, headers: Mapping[str, str] = MappingProxyType({})) -> Reply:
    code, text = status_of(error)
    if code is grpc.StatusCode.INTERNAL:
        _log.error("a request failed in a way nobody foresaw", exc_info=error)
    last = isinstance(error, (*_EARLY, BusyError))  # what is left of its body would be taken for the next request
    if isinstance(error, EncodingError):
        headers = {**headers, "Accept-Encoding": KNOWN}
    status = next((_EARLY[kind] for kind in _EARLY if isinstance(error, kind)), STATUS[code])
    return failed(status, text, headers=headers, last=last)


_told = partial(MessageToDict, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def status_body(models: Models, route: Route) -> bytes:
    """Raises RequestError, NotServingError."""
    request = get_model_status_pb2.GetModelStatusRequest(model_spec=route.spec())
    return _text(_told(states(models, request)))


def metadata_body(models: Models, route: Route) -> bytes:
    """Raises RequestError, NotServingError."""
    request = get_model_metadata_pb2.GetModelMetadataRequest(model_spec=route.spec(), metadata_field=[FIELD])
    response = metadata(models, request)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    response.metadata[FIELD].Unpack(signatures)
    return _text({"model_spec": _told(response.model_spec), "metadata": {FIELD: _told(signatures)}})


def _text(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
