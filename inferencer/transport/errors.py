"""Turns errors, including TensorFlow's, into gRPC statuses. Servicers catch nothing themselves."""

from __future__ import annotations

import logging
import re

import grpc

from paramsync.rpc.server import CODES, UNFORESEEN, code_of, one_line

_log = logging.getLogger("paramsync.services")

_TENSORFLOW = {  # by TensorFlow's error codes, as numbers: this module does not import TensorFlow
    3: grpc.StatusCode.INVALID_ARGUMENT,  # inputs that a kernel refused
    8: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """Return code and text for the client. An unforeseen error is INTERNAL; its text goes only to the log."""
    code = code_of(error, CODES) or _TENSORFLOW.get(getattr(error, "error_code", None) or 0)
    return (grpc.StatusCode.INTERNAL, UNFORESEEN) if code is None else (code, one_line(_text(error)))


def is_unforeseen(error: BaseException) -> bool:
    """Whether this process is at fault: `CODES` has no status for the error, and no graph raised it."""
    return code_of(error, CODES) is None and not hasattr(error, "error_code")


def logged_status(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return `status_of` the error, and log an unforeseen one."""
    code, text = status_of(error)
    if code is grpc.StatusCode.INTERNAL:
        _log.error("a request failed in a way nobody foresaw", exc_info=error)
    return code, text


def _text(error: BaseException) -> str:
    if not hasattr(error, "error_code"):
        return str(error)
    # TensorFlow writes names of functions before the text, and names of nodes on further lines
    return re.sub(r"^(\{\{[^{}]*\}\}\s*)+", "", str(getattr(error, "message", error)).partition("\n")[0])
