"""From error to gRPC status, where TensorFlow's own errors are among them. Servicers themselves catch nothing."""

from __future__ import annotations

import logging
import re
from typing import Any, NoReturn

import grpc
import tensorflow as tf

from paramsync.rpc.server import CODES, UNFORESEEN, code_of, one_line

_log = logging.getLogger("paramsync.services")

_CODES = {
    **CODES,
    tf.errors.InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,  # inputs that a kernel refused
    tf.errors.ResourceExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """The code and the one line that a client gets. What nobody foresaw is INTERNAL, and only the log has it."""
    code = code_of(error, _CODES)
    return (grpc.StatusCode.INTERNAL, UNFORESEEN) if code is None else (code, one_line(_text(error)))


async def abort(error: Exception, context: Any) -> NoReturn:
    """End a call with the error's status."""
    code, text = status_of(error)
    if code is grpc.StatusCode.INTERNAL:
        _log.error("a request failed in a way nobody foresaw", exc_info=error)
    # gRPC keeps what abort raises until garbage is collected, and no version is to be kept in memory for as long
    error.with_traceback(None)
    await context.abort(code, text)
    raise AssertionError("abort raises")  # for the type checker


def _text(error: BaseException) -> str:
    if not isinstance(error, tf.errors.OpError):
        return str(error)
    # TensorFlow names the functions that it made of a call before its text, and nodes on further lines
    return re.sub(r"^(\{\{[^{}]*\}\}\s*)+", "", error.message.partition("\n")[0])
