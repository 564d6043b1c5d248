"""Shared by the servers of both programs: limits of connections, status codes of errors, values as messages."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import grpc
from google.protobuf import text_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from paramsync import errors
from paramsync.program.process import connection_limit

SILENT_SECONDS = 10  # a new connection has this long to speak HTTP/2
IDLE_SECONDS = 60  # after this time a connection without calls is closed; callers reconnect unnoticed, as with HTTP
ALIVE_SECONDS = 30  # after this time a silent connection with calls is pinged
_AGE_SECONDS = 3600  # after this time a connection is closed, and its calls end; callers reconnect
_AGE_GRACE_SECONDS = 60  # the time for calls of an old connection to end by themselves
_MOST_CONNECTIONS = 4096  # most connections of a port, if there are enough file descriptors
_PORTS = 3  # the ports of a process share its file descriptors
_MOST_CALLS_OF_ONE = 1 << 10  # most open calls of one connection; further calls wait at the client
_MOST_PENDING = 1 << 12  # the most received calls of a port that wait for a thread

_MOST_TOLD = 1 << 12  # bytes; the log contains only the size of a larger request
_MOST_BYTES = 1000  # most bytes of a status text: headers have a limited size, and one byte may take three bytes there

UNFORESEEN = "internal error; the server's log has it"
"""The text, with INTERNAL, for an error that is not in a table."""

_M = TypeVar("_M", bound=Message)
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
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
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


def code_of(error: BaseException, codes: Codes = CODES) -> grpc.StatusCode | None:
    """Return the code of the error's nearest class in the table; None for an unforeseen error."""
    return next((codes[kind] for kind in type(error).__mro__ if kind in codes), None)


def one_line(text: str) -> str:
    """Return the text of a status: one line, cut if it is long, without characters that cannot be sent."""
    begins = text[: 4 * _MOST_BYTES]  # the rest of a very long text is ignored
    content = " ".join(begins.split()).encode(errors="backslashreplace")
    whole = len(content) <= _MOST_BYTES and len(begins) == len(text)
    return content.decode() if whole else content[:_MOST_BYTES].decode(errors="ignore") + "..."


def request_text(request: Message) -> str:
    """Return a request as text, for the log."""
    size = request.ByteSize()
    return text_format.MessageToString(request, as_one_line=True) if size <= _MOST_TOLD else f"{size} bytes"


def most_connections() -> int:
    """Return how many connections a port accepts."""
    return min(_MOST_CONNECTIONS, connection_limit() // _PORTS)


def options(message_bytes: int) -> tuple[tuple[str, int], ...]:
    """Return options of a grpcio server that strangers may reach, for messages of at most `message_bytes`."""
    return (
        ("grpc.so_reuseport", 0),  # no second server can share the port and its calls
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_allowed_incoming_connections", most_connections()),
        ("grpc.server_handshake_timeout_ms", 1000 * SILENT_SECONDS),
        ("grpc.max_connection_idle_ms", 1000 * IDLE_SECONDS),
        ("grpc.max_connection_age_ms", 1000 * _AGE_SECONDS),  # ends silent calls, which occupy threads
        ("grpc.max_connection_age_grace_ms", 1000 * _AGE_GRACE_SECONDS),
        ("grpc.keepalive_time_ms", 1000 * ALIVE_SECONDS),
        ("grpc.max_concurrent_streams", _MOST_CALLS_OF_ONE),
        # limits a caller that resets its calls at once: an ended call counts until gRPC has freed it
        ("grpc.http.overload_protection", 1),
        ("grpc.http2.max_deallocating_streams", _MOST_CALLS_OF_ONE),
        # above 1000 pending calls, the default, gRPC ends some of them at random with CANCELLED
        ("grpc.server.max_pending_requests", _MOST_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MOST_PENDING),
        ("grpc.http2.bdp_probe", 0),  # with this probe gRPC would read up to 4 MB ahead of each unread stream
    )


def plain(message: Message) -> dict[str, Any]:
    """Return a message as JSON values: every field, None for an absent field, enum values as words."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Message, field: Any) -> Any:  # a FieldDescriptor, whose class depends on protobuf's build
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [_single(element, field) for element in value]
    return _single(value, field)


def _single(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        name: str = field.enum_type.values_by_number[value].name
        return name.lower()
    return plain(value) if field.message_type is not None else value


def of_value(kind: type[_M], value: object) -> _M:
    """Make a message: each field has the value of the attribute with the field's name, and is absent for None."""
    values = {}
    for name, field in kind.DESCRIPTOR.fields_by_name.items():
        content = getattr(value, name)
        is_message = field.message_type is not None and not isinstance(content, Mapping)
        if is_message and content is not None:
            content = of_value(GetMessageClass(field.message_type), content)
        values[name] = content
    return kind(**values)
