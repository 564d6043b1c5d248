"""The one table from error to gRPC status, for the edges where servicers answer."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import CancelledError

import grpc

from paramsync import errors

Codes = Mapping[type[BaseException], grpc.StatusCode]

CODES: Codes = {
    errors.UnknownModelError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownVersionError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownLabelError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownSignatureError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.StoppedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotAllowedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotServingError: grpc.StatusCode.UNAVAILABLE,
    errors.BusyError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.SyncError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StoreError: grpc.StatusCode.UNAVAILABLE,
    errors.PublishError: grpc.StatusCode.INTERNAL,
    CancelledError: grpc.StatusCode.CANCELLED,
    TimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
    NotImplementedError: grpc.StatusCode.UNIMPLEMENTED,
}

_MOST_BYTES = 1000  # of a text: it is sent in a header, where a byte may take three, and headers have a limit

UNFORESEEN = "internal error; the server's log has it"
"""What a caller is told, with INTERNAL, of an error that no table has."""


def code_of(error: BaseException, codes: Codes = CODES) -> grpc.StatusCode | None:
    """The code of the nearest class of the error that the table has; None where nobody foresaw it."""
    return next((codes[kind] for kind in type(error).__mro__ if kind in codes), None)


def one_line(text: str) -> str:
    """The text as a status carries it: of what is long the beginning, and nothing that could not be sent."""
    begins = text[: 4 * _MOST_BYTES]  # of what is very long nothing more is looked at
    content = " ".join(begins.split()).encode(errors="backslashreplace")
    whole = len(content) <= _MOST_BYTES and len(begins) == len(text)
    return content.decode() if whole else content[:_MOST_BYTES].decode(errors="ignore") + "..."
