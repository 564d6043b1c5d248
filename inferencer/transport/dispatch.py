"""Makes the methods of a port from servicers: turns bytes into messages and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from paramsync.errors import TooLargeError
from paramsync.rpc.access import Access

from .health import Health
from .methods import Admission, Answering, Call, Method
from .partial_parsing import read
from .reflection import METHOD, Reflection
from .streams import Slots, each

if TYPE_CHECKING:
    from .predictions import PredictionMethod, Predictions

_MOST = 1 << 18  # bytes of a request other than predictions: it is parsed on the event loop
_MOST_STREAMS = 512  # of each port: callers may keep streams open for ever
_MOST_WAITING = 256  # calls of each method that does not predict; a call may wait for a version to serve

Run: TypeAlias = "Callable[[Call], Awaitable[None]]"
Respond: TypeAlias = "Callable[[Call], AsyncGenerator[bytes, None]]"
"""Yields any number of answers to a call."""


def methods_of(
    servicers: Mapping[ServiceDescriptor, Any],
    health: Health,
    draining: asyncio.Event,
    access: Access,
    predictions: Predictions | None = None,
) -> dict[str, Method]:
    """The methods of one port by path: those of servicers, of health and of reflection."""
    dispatch = Dispatch(predictions, Slots(_MOST_STREAMS, "streams"), access)
    servicers = {**servicers, health_pb2.DESCRIPTOR.services_by_name["Health"]: health}
    methods = {
        path: method for service, servicer in servicers.items() for path, method in dispatch.methods(servicer, service)
    }
    reflection = Reflection([service.full_name for service in servicers], draining)
    methods[f"/{METHOD}"] = Method(dispatch.stream(reflection.respond), Admission(access, METHOD), is_stream=True)
    return methods


class Dispatch:
    """Finds a handler for each method of a service: the servicer's attribute of the same name.

    The attribute is a coroutine function or, if responses are a stream, an asynchronous generator function, called with
    the request and the call; or it is a PredictionMethod, and Predictions answers. Without an attribute, the method is
    unimplemented.
    """

    def __init__(self, predictions: Predictions | None, streams: Slots, access: Access) -> None:
        self._predictions: Any = predictions  # unused by a port that predicts nothing
        self._streams = streams
        self._access = access

    def methods(self, servicer: Any, service: ServiceDescriptor) -> Iterator[tuple[str, Method]]:
        for described in service.methods:
            method, name = getattr(servicer, described.name, None), f"{service.full_name}/{described.name}"
            if method is not None:
                admission = Admission(self._access, name)
                run = self._run(method, described, admission)
                is_stream, predicts = described.client_streaming, _is_prediction(method)
                yield f"/{name}", Method(run, admission, is_stream=is_stream, predicts=predicts)

    def stream(self, respond: Respond) -> Run:
        """Handle a call with any number of answers. The call takes a place for streams."""

        async def run(call: Call) -> None:
            with self._streams.one(call.peer):
                async with aclosing(respond(call)) as responses:
                    async for response in responses:
                        await call.write(response)
            call.finish()

        return run

    def _run(self, method: Any, described: MethodDescriptor, admission: Admission) -> Run:
        path = f"{described.containing_service.full_name}/{described.name}"
        if _is_prediction(method):
            return self._predicted(self._predictions.answering(method, _kind(described), path))
        if described.client_streaming:
            answer = self._predictions.answering(method.prediction, _kind(described), path)
            return self.stream(each(method, answer, self._predictions.share))
        if described.server_streaming:
            return self.stream(self._responses(method, described, admission))
        return self._answered(method, described, admission)

    def _predicted(self, answer: Answering) -> Run:
        share = self._predictions.share

        async def run(call: Call) -> None:
            call.share = share()
            call.answer(*await answer(call.take(), call.share, call))

        return run

    def _answered(self, method: Any, described: MethodDescriptor, admission: Admission) -> Run:
        parsed = _parser(described, most=_MOST)
        waiting = Slots(_MOST_WAITING, f"calls of {described.name}")

        async def run(call: Call) -> None:
            request = parsed(call.take())
            with admission.audit(call.caller, request), waiting.one(call.peer):
                response = (await method(request, call)).SerializeToString()
            call.answer(response, ())

        return run

    def _responses(self, method: Any, described: MethodDescriptor, admission: Admission) -> Respond:
        """Handle a call with one request and any number of answers."""
        parsed = _parser(described, most=_MOST)

        async def respond(call: Call) -> AsyncGenerator[bytes, None]:
            request = parsed(call.take())
            with admission.audit(call.caller, request):
                async with aclosing(method(request, call)) as messages:
                    async for message in messages:
                        yield message.SerializeToString()

        return respond


def _is_prediction(method: Any) -> TypeGuard[PredictionMethod]:
    return hasattr(method, "read") and hasattr(method, "write")


def _parser(described: MethodDescriptor, *, most: int) -> Callable[[bytes], Any]:
    kind = _kind(described)

    def parsed(content: bytes) -> Any:
        """Raises RequestError."""
        if len(content) > most:
            raise TooLargeError(f"request, a {described.input_type.full_name}", limit=most, found=len(content))
        return read(kind, content)

    return parsed


def _kind(described: MethodDescriptor) -> type[Message]:
    return message_factory.GetMessageClass(described.input_type)
