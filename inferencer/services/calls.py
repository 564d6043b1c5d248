"""How a servicer's methods become calls of a server: bytes to messages and back, and errors to gRPC statuses."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from inferencer.services.errors import status_of
from inferencer.services.threads import Threads
from paramsync.errors import RequestError

_log = logging.getLogger("paramsync.services")


def add_servicer(servicer: Any, service: ServiceDescriptor, server: grpc.aio.Server, threads: Threads) -> None:
    """Answer every call of the service with the servicer's method of that name.

    A coroutine, or an asynchronous generator where responses are a stream, lives on the event loop and gets the request
    and the context. A plain function gets the request alone, on one of the threads, where its request is parsed and its
    response serialised too.
    """
    handlers = {method.name: _handler(getattr(servicer, method.name), method, threads) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def _handler(method: Callable[..., Any], described: MethodDescriptor, threads: Threads) -> Any:
    # without a deserializer gRPC hands over the bytes; its own answer to what cannot be parsed is an INTERNAL error
    if described.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_streamed(method, described))
    if inspect.iscoroutinefunction(method):
        return grpc.unary_unary_rpc_method_handler(_answered(method, described))
    return grpc.unary_unary_rpc_method_handler(_computed(method, described, threads))


def _answered(method: Callable[..., Awaitable[Message]], described: MethodDescriptor) -> Callable[..., Any]:
    async def call(content: bytes, context: Any) -> bytes:
        try:
            return (await method(_parsed(content, described), context)).SerializeToString()
        except Exception as error:  # noqa: BLE001, the edge
            await _abort(error, context)

    return call


def _computed(method: Callable[..., Message], described: MethodDescriptor, threads: Threads) -> Callable[..., Any]:
    async def call(content: bytes, context: Any) -> bytes:
        try:
            return await threads.run(lambda: method(_parsed(content, described)).SerializeToString())
        except Exception as error:  # noqa: BLE001, the edge
            await _abort(error, context)

    return call


def _streamed(method: Callable[..., Any], described: MethodDescriptor) -> Callable[..., Any]:
    async def call(content: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            async with aclosing(method(_parsed(content, described), context)) as responses:
                async for response in responses:
                    yield response.SerializeToString()
        except Exception as error:  # noqa: BLE001, the edge
            await _abort(error, context)

    return call


def _parsed(content: bytes, described: MethodDescriptor) -> Message:
    """Raises RequestError."""
    try:
        return message_factory.GetMessageClass(described.input_type).FromString(content)
    except DecodeError as error:
        found = f"{len(content)} bytes that are none"
        raise RequestError(f"request: expected a {described.input_type.full_name}, found {found}") from error


async def _abort(error: Exception, context: Any) -> NoReturn:
    code, text = status_of(error)
    if code is grpc.StatusCode.INTERNAL:
        _log.error("a request failed in a way nobody foresaw", exc_info=error)
    await context.abort(code, text)
    raise AssertionError("abort raises")  # for the type checker
