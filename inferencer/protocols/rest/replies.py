"""What an HTTP request is answered with; from gRPC's status codes to those of HTTP, as in TensorFlow Serving."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType

import grpc

SERVER = "paramsync"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = JSON
    last: bool = False
    """Whether the connection ends with it: what else comes on it cannot be told from the rest of this request."""


def failed(status: int, text: str, *, headers: Mapping[str, str] = MappingProxyType({}), last: bool = False) -> Reply:
    return Reply(status, json.dumps({"error": text}).encode() + b"\n", headers, last=last)


def bare(reply: Reply) -> bytes:
    """All that is sent, where no request was read, after which the connection ends."""
    head = (
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\nServer: {SERVER}\r\nConnection: close\r\n"
        f"Content-Type: {reply.content_type}\r\nContent-Length: {len(reply.body)}\r\n\r\n"
    )
    return head.encode() + reply.body


_Code = grpc.StatusCode
STATUS = {
    _Code.OK: 200,
    _Code.CANCELLED: 499,
    _Code.UNKNOWN: 500,
    _Code.INVALID_ARGUMENT: 400,
    _Code.DEADLINE_EXCEEDED: 504,
    _Code.NOT_FOUND: 404,
    _Code.ALREADY_EXISTS: 409,
    _Code.PERMISSION_DENIED: 403,
    _Code.RESOURCE_EXHAUSTED: 429,
    _Code.FAILED_PRECONDITION: 400,
    _Code.ABORTED: 409,
    _Code.OUT_OF_RANGE: 400,
    _Code.UNIMPLEMENTED: 501,
    _Code.INTERNAL: 500,
    _Code.UNAVAILABLE: 503,
    _Code.DATA_LOSS: 500,
    _Code.UNAUTHENTICATED: 401,
}
