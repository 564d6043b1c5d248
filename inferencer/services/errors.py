"""The one table from error to gRPC status, and the one wrapper that applies it. Servicers themselves catch nothing."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
import tensorflow as tf

from paramsync import errors

_LOG = logging.getLogger("paramsync.services")

_CODES: dict[type[BaseException], grpc.StatusCode] = {
    errors.UnknownModelError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownVersionError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownSignatureError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotServingError: grpc.StatusCode.UNAVAILABLE,
    errors.SyncError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StoreError: grpc.StatusCode.UNAVAILABLE,
    TimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
    NotImplementedError: grpc.StatusCode.UNIMPLEMENTED,
    tf.errors.InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,  # inputs that a kernel refused
    tf.errors.ResourceExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

_Servicer = TypeVar("_Servicer")
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """The code and the one line that a client gets. What nobody foresaw is INTERNAL, and only the log has it."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind], " ".join(_text(error).split())
    return grpc.StatusCode.INTERNAL, "internal error; the server's log has it"


def answered(
    method: Callable[[_Servicer, _Request, Any], Awaitable[_Response]],
) -> Callable[[_Servicer, _Request, Any], Awaitable[_Response]]:
    """A servicer's method with one response, whose errors become gRPC statuses."""

    @functools.wraps(method)
    async def call(servicer: _Servicer, request: _Request, context: Any) -> _Response:
        try:
            return await method(servicer, request, context)
        except Exception as error:  # noqa: BLE001, the edge
            await _abort(error, context)

    return call


def streamed(
    method: Callable[[_Servicer, _Request, Any], AsyncIterator[_Response]],
) -> Callable[[_Servicer, _Request, Any], AsyncIterator[_Response]]:
    """The same for a servicer's method with a stream of responses."""

    @functools.wraps(method)
    async def call(servicer: _Servicer, request: _Request, context: Any) -> AsyncIterator[_Response]:
        try:
            async for response in method(servicer, request, context):
                yield response
        except Exception as error:  # noqa: BLE001, the edge
            await _abort(error, context)

    return call


async def _abort(error: Exception, context: Any) -> NoReturn:
    code, text = status_of(error)
    if code is grpc.StatusCode.INTERNAL:
        _LOG.error("a request failed in a way nobody foresaw", exc_info=error)
    await context.abort(code, text)
    raise AssertionError("abort raises")  # for the type checker


def _text(error: BaseException) -> str:
    # TensorFlow adds the stack of the graph and the name of its node on further lines
    return error.message.partition("\n")[0] if isinstance(error, tf.errors.OpError) else str(error)
