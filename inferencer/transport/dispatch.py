"""How a servicer's methods become calls of a server: bytes to messages and back, and errors to gRPC statuses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from paramsync.errors import BusyError, TooLargeError
from paramsync.rpc.access import Access, Caller
from paramsync.rpc.connection_limit import ConnectionLimit

from .admission import Admission
from .drain import Drain
from .errors import abort
from .partial_parsing import read
from .read_timeout import ReadTimeouts
from .streams import Slots, each

if TYPE_CHECKING:
    from .predictions import Answering, PredictionMethod, Predictions

_MOST = 1 << 18  # bytes of a request that does not predict: it is read on the event loop
_MOST_WAITING = 256  # of each method that does not predict: some of them wait for a version to serve

Begin: TypeAlias = "Callable[[Any, str], Awaitable[AsyncGenerator[bytes, None]]]"
"""Begins a call with any number of responses, for its context and its peer."""


class Dispatch(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # it takes none when it runs
    """Every call of a service, answered by the servicer's attribute of that name.

    A coroutine, or an asynchronous generator where responses are a stream, lives on the event loop and gets the request
    and the context. A Prediction is answered by Predictions. What the servicer lacks gRPC itself calls unimplemented.

    A call's peer is asked here and handed on, when the call begins: gRPC crashes where it is asked of one that is over.
    """

    def __init__(
        self,
        servicer: Any,
        service: ServiceDescriptor,
        predictions: Predictions | None,
        streams: Slots,
        timeouts: ReadTimeouts,
        drain: Drain,
        connections: ConnectionLimit,
        access: Access,
    ) -> None:
        self._predictions: Any = predictions  # which a port without any needs not
        self._streams = streams
        self._timeouts = timeouts
        self._drain = drain
        self._connections = connections
        self._handlers: dict[str, Any] = {}
        for described in service.methods:
            method, path = getattr(servicer, described.name, None), f"/{service.full_name}/{described.name}"
            if method is not None:
                self._handlers[path] = self._handler(method, described, Admission(access, path[1:]))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(handler_call_details.method)

    def _handler(self, method: Any, described: MethodDescriptor, admission: Admission) -> Any:
        path = f"{described.containing_service.full_name}/{described.name}"
        # without a deserializer gRPC hands over the bytes; its own answer to what cannot be parsed is an INTERNAL error
        if _is_prediction(method):
            return self._unary(self._predictions.answering(method, _kind(described), path), admission)
        if described.client_streaming:
            answer = self._predictions.answering(method.prediction, _kind(described), path)
            begin = each(method, answer, self._predictions.share, self._timeouts)
            return self._stream(_admitted(begin, admission) if admission.looks else begin)
        if described.server_streaming:
            return self._stream(self._responses(method, described, admission))
        return self._answered(method, described, admission)

    def _unary(self, answer: Answering, admission: Admission) -> Any:
        message, drain, connections = self._timeouts.message, self._drain, self._connections

        async def call(_: Any, context: Any) -> bytes:
            peer = context.peer()
            task = drain.taken_up()
            connections.begin(context, peer)
            share = self._predictions.share()
            try:
                if admission.looks:
                    await admission.admit(context, peer)
                answering = answer(await message(context, peer), share, context)  # and the message is not kept here
                try:
                    response, trailers = await answering
                except Exception as error:  # noqa: BLE001, the edge
                    await abort(error, context)
                context.set_trailing_metadata(trailers)
                if drain.paused:
                    await drain.resumed()
                drain.answering(task, peer)
                return response
            finally:
                connections.end(context)
                if share.size:
                    task.add_done_callback(lambda _: share.leave())  # once gRPC has written the answer

        return grpc.stream_unary_rpc_method_handler(call)  # for gRPC, so that the message is ours to wait for

    def _answered(
        self, method: Callable[..., Awaitable[Message]], described: MethodDescriptor, admission: Admission
    ) -> Any:
        message, drain, connections = self._timeouts.message, self._drain, self._connections
        parsed = _parser(described, most=_MOST)
        waiting = Slots(_MOST_WAITING, f"calls of {described.name}")

        async def call(_: Any, context: Any) -> bytes:
            peer = context.peer()
            task = drain.taken_up()
            with connections.call(context, peer):
                caller = await admission.admit(context, peer) if admission.looks else None
                content = await message(context, peer)
                try:
                    request = parsed(content)
                    with admission.audited(caller, request), waiting.one(peer):
                        response = (await method(request, context)).SerializeToString()
                except Exception as error:  # noqa: BLE001, the edge
                    await abort(error, context)
                if drain.paused:
                    await drain.resumed()
                drain.answering(task, peer)
                return response

        return grpc.stream_unary_rpc_method_handler(call)

    def _stream(self, begin: Begin) -> Any:
        """A call with any number of responses. It takes one of the streams once it has begun."""
        drain = self._drain

        async def call(_: Any, context: Any) -> AsyncIterator[bytes]:
            peer = context.peer()
            with self._connections.call(context, peer):
                async with aclosing(await begin(context, peer)) as responses:
                    task = drain.taken_up()
                    try:
                        with self._streams.one(peer):
                            async for response in responses:
                                if drain.paused:
                                    await drain.resumed()
                                drain.answering(task, peer)
                                yield response
                                drain.answered(task)
                    except BusyError as error:
                        await abort(error, context)

        return grpc.stream_stream_rpc_method_handler(call)

    def _responses(self, method: Callable[..., Any], described: MethodDescriptor, admission: Admission) -> Begin:
        """Begins a call with one request."""
        parsed = _parser(described, most=_MOST)

        async def responses(content: bytes, context: Any, caller: Caller | None) -> AsyncGenerator[bytes, None]:
            try:
                request = parsed(content)
                with admission.audited(caller, request):
                    async with aclosing(method(request, context)) as messages:
                        async for message in messages:
                            yield message.SerializeToString()
            except Exception as error:  # noqa: BLE001, the edge
                await abort(error, context)

        async def begin(context: Any, peer: str) -> AsyncGenerator[bytes, None]:
            caller = await admission.admit(context, peer) if admission.looks else None
            return responses(await self._timeouts.message(context, peer), context, caller)

        return begin


def _admitted(begin: Begin, admission: Admission) -> Begin:
    async def admitted(context: Any, peer: str) -> AsyncGenerator[bytes, None]:
        await admission.admit(context, peer)
        return await begin(context, peer)

    return admitted


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
