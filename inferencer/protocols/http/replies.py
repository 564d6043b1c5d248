"""HTTP answers, and the HTTP status of each gRPC status code, as in TensorFlow Serving."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

import grpc
from aiohttp import web

JSON = "application/json"
_SERVER = "paramsync"


def reply(status: int, body: bytes, headers: Mapping[str, str] | None = None, *, last: bool = False) -> web.Response:
    """Make an answer. With `last`, the connection ends after the answer, because the request may not have been read to
    its end, and its rest would be taken for the next request.
    """
    response = web.Response(
        status=status, body=body, headers={"Content-Type": JSON, "Server": _SERVER, **(headers or {})}
    )
    if last:
        response.force_close()
    return response


def failed(status: int, text: str, headers: Mapping[str, str] | None = None, *, last: bool = False) -> web.Response:
    return reply(status, _error(text), headers, last=last)


def bare(status: int, text: str) -> bytes:
    """Write an answer as bytes, for a connection without a parsed request. The connection ends after the answer."""
    body = _error(text)
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nServer: {_SERVER}\r\nConnection: close\r\n"
        f"Content-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _error(text: str) -> bytes:
    return json.dumps({"error": text}).encode() + b"\n"


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
