"""Frames as a client writes them, and as it reads those of a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from paramsync.http2 import frames
from paramsync.http2.connection import ServerConnection
from paramsync.http2.events import Limits
from paramsync.http2.frames import END_HEADERS, END_STREAM, HEADER, HEADER_SIZE
from paramsync.http2.headers import STATUS_200
from paramsync.http2.hpack import encoded


def encoded_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(encoded(name, value) for name, value in fields)


REQUEST = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/service/Method"), (b":authority", b"server"))
HEAD = encoded_fields(REQUEST)
ANSWER = STATUS_200 + encoded(b"content-type", b"application/grpc")
TRAILERS = encoded(b"grpc-status", b"0")


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def split(content: bytes) -> list[Frame]:
    """The frames that these bytes are, which must be whole."""
    found = []
    at = 0
    while at < len(content):
        head, flags, stream = HEADER.unpack_from(content, at)
        at += HEADER_SIZE + (head >> 8)
        assert at <= len(content), "a frame that is not whole"
        found.append(Frame(head & 0xFF, flags, stream, content[at - (head >> 8) : at]))
    return found


def written(server: ServerConnection) -> list[Frame]:
    return split(server.output())


def kinds(server: ServerConnection) -> list[int]:
    return [frame.kind for frame in written(server)]


def connected(limits: Limits | None = None, settings: dict[int, int] | None = None) -> ServerConnection:
    """A connection whose client said its preface, and has read all that the server had to say."""
    server = ServerConnection(limits or Limits())
    assert server.receive(frames.PREFACE + frames.settings(settings or {}), 0.0) == []
    server.output()
    return server


def headers(stream: int, block: bytes = HEAD, *, end: bool = False) -> bytes:
    return frames.header_block(stream, block, end, frames.DEFAULT_FRAME)


def data(stream: int, content: bytes, *, end: bool = False) -> bytes:
    return frames.frame(frames.DATA, END_STREAM if end else 0, stream, content)


def padded(content: bytes, padding: int) -> bytes:
    return bytes((padding,)) + content + bytes(padding)


def request(stream: int, content: bytes = b"question") -> bytes:
    return headers(stream) + data(stream, content, end=True)


def with_fields(stream: int, fields: Iterable[tuple[bytes, bytes]], *, end: bool = False) -> bytes:
    return frames.frame(
        frames.HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, encoded_fields([*REQUEST, *fields])
    )
