"""From error to gRPC status, where TensorFlow's own errors are among them. Servicers themselves catch nothing."""

from __future__ import annotations

import grpc
import tensorflow as tf

from paramsync.status_codes import CODES, UNFORESEEN, code_of, one_line

_CODES = {
    **CODES,
    tf.errors.InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,  # inputs that a kernel refused
    tf.errors.ResourceExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """The code and the one line that a client gets. What nobody foresaw is INTERNAL, and only the log has it."""
    code = code_of(error, _CODES)
    return (grpc.StatusCode.INTERNAL, UNFORESEEN) if code is None else (code, one_line(_text(error)))


def _text(error: BaseException) -> str:
    # TensorFlow adds the stack of the graph and the name of its node on further lines
    return error.message.partition("\n")[0] if isinstance(error, tf.errors.OpError) else str(error)
