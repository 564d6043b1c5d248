"""Makes the methods of a port from servicers: turns bytes into messages and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from paramsync.errors import TooLargeError
from paramsync.rpc.access import Access

from .health import Health
from .memory_budget import MemoryShare
from .methods import Admission, Answering, Call, Method
from .partial_parsing import read
from .reflection import METHOD, Reflection
from .streams import Slots, each

if TYPE_CHECKING:
    from .predictions import PredictionMethod, Predictions

_MOST = 1 << 18  # most bytes of a request that is not a prediction, because it is parsed on the event loop
_MOST_STREAMS = 512  # most streams of each port, because callers may keep streams open for ever
# Most open calls of each method with one request and one answer, predictions excepted: a call may wait until a version
# serves.
_MOST_WAITING = 256

Run: TypeAlias = "Callable[[Call], Awaitable[None]]"
Respond: TypeAlias = "Callable[[Call], AsyncGenerator[bytes, None]]"
"""A function that yields any number of answers to a call."""


def methods_of(
    servicers: Mapping[ServiceDescriptor, Any],
    health: Health,
    draining: asyncio.Event,
    access: Access,
    predictions: Predictions | None = None,
) -> dict[str, Method]:
    """Return the methods of one port by path, including health and reflection.

    A servicer's attribute with the name of a method handles that method. Methods without such an attribute are
    unimplemented. The attribute is
    - a coroutine function, called with the request and the call
    - an asynchronous generator function, if only the responses are a stream
    - a PredictionMethod, answered by `predictions`
    - a PredictionStream, if requests are a stream
    """
    streams = Slots(_MOST_STREAMS, "streams")
    servicers = {**servicers, health_pb2.DESCRIPTOR.services_by_name["Health"]: health}
    methods = {}
    for service, servicer in servicers.items():
        for described in service.methods:
            method, name = getattr(servicer, described.name, None), f"{service.full_name}/{described.name}"
            if method is not None:
                admission = Admission(access, name)
                run = _run(method, described, admission, streams, predictions)
                is_stream, predicts = described.client_streaming, _is_prediction(method)
                methods[f"/{name}"] = Method(run, admission, is_stream=is_stream, predicts=predicts)
    reflection = Reflection([service.full_name for service in servicers], draining)
    methods[f"/{METHOD}"] = Method(_stream(reflection.respond, streams), Admission(access, METHOD), is_stream=True)
    return methods


def _run(method: Any, described: MethodDescriptor, admission: Admission, streams: Slots, predictions: Any) -> Run:
    path = f"{described.containing_service.full_name}/{described.name}"
    if _is_prediction(method):
        return _predicted(predictions.answering(method, _kind(described), path), predictions.share)
    if described.client_streaming:
        answer = predictions.answering(method.prediction, _kind(described), path)
        return _stream(each(method, answer, predictions.share), streams)
    if described.server_streaming:
        return _stream(_responses(method, described, admission), streams)
    return _answered(method, described, admission)


def _stream(respond: Respond, streams: Slots) -> Run:
    """Return a handler for calls with any number of answers. Each call holds a place in `streams`."""

    async def run(call: Call) -> None:
        with streams.one(call.peer):
            async with aclosing(respond(call)) as responses:
                async for response in responses:
                    await call.write(response)
        call.finish()

    return run


def _predicted(answer: Answering, share: Callable[[], MemoryShare]) -> Run:
    async def run(call: Call) -> None:
        call.share = share()
        call.answer(*await answer(call.take(), call.share, call))

    return run


def _answered(method: Any, described: MethodDescriptor, admission: Admission) -> Run:
    parsed = _parser(described)
    waiting = Slots(_MOST_WAITING, f"calls of {described.name}")

    async def run(call: Call) -> None:
        request = parsed(call.take())
        with admission.audit(call.caller, request), waiting.one(call.peer):
            response = (await method(request, call)).SerializeToString()
        call.answer(response, ())

    return run


def _responses(method: Any, described: MethodDescriptor, admission: Admission) -> Respond:
    """Return a function that answers a call with one request and any number of answers."""
    parsed = _parser(described)

    async def respond(call: Call) -> AsyncGenerator[bytes, None]:
        request = parsed(call.take())
        with admission.audit(call.caller, request):
            async with aclosing(method(request, call)) as messages:
                async for message in messages:
                    yield message.SerializeToString()

    return respond


def _is_prediction(method: Any) -> TypeGuard[PredictionMethod]:
    return hasattr(method, "read") and hasattr(method, "write")


def _parser(described: MethodDescriptor) -> Callable[[bytes], Any]:
    kind = _kind(described)

    def parsed(content: bytes) -> Any:
        """Parse a request. Raises RequestError."""
        if len(content) > _MOST:
            raise TooLargeError(f"request, a {described.input_type.full_name}", limit=_MOST, found=len(content))
        return read(kind, content)

    return parsed


def _kind(described: MethodDescriptor) -> type[Message]:
    return message_factory.GetMessageClass(described.input_type)
