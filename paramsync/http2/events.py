"""The events and limits of a connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from paramsync.http2.errors import Http2Error
from paramsync.http2.headers import Head


@dataclass(frozen=True, slots=True)
class Limits:
    streams: int = 1024
    frame: int = 1 << 16
    stream_window: int = 1 << 20
    connection_window: int = 1 << 24
    header_list: int = 16 << 10  # bytes of a head; a larger head is marked `too_large`
    header_block: int = 32 << 10  # the most bytes of a block of headers, encoded and decoded: some milliseconds of work
    control: int = 10_000  # the most frames that carry nothing, in one burst
    control_per_second: int = 2_000  # the most frames that carry nothing, on average per second


class Headers(NamedTuple):
    """A request begins."""

    stream: int
    head: Head
    ended: bool


class Data(NamedTuple):
    """A part of a request's content. Call `consumed` once the part is processed."""

    stream: int
    content: bytes
    ended: bool


class Reset(NamedTuple):
    """The stream is over: the peer reset it, or broke the protocol on it."""

    stream: int
    code: int


class Sent(NamedTuple):
    """Everything that waited in the stream's queue has moved to the output."""

    stream: int


class Pong(NamedTuple):
    payload: bytes


class Lost(NamedTuple):
    """The connection is over: write the output, then close."""

    error: Http2Error


Event = Headers | Data | Reset | Sent | Pong | Lost
