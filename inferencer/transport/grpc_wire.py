"""The wire format of gRPC over HTTP/2: a call's headers, length-prefixed messages, statuses as trailers."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

import grpc

from paramsync.errors import ParamsyncError, RequestError, TooLargeError
from paramsync.http2.headers import STATUS_200, Head
from paramsync.http2.hpack import encoded
from paramsync.rpc.server import one_line

from .errors import status_of

PREFIX = struct.Struct(">BI")
"""The prefix of each message: whether the message is compressed, and its size."""
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_WINDOWS = {"identity": 0, "gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_OURS = frozenset({"te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "accept-encoding"})
_ONCE = frozenset({"content-type", "grpc-timeout", "grpc-encoding"})
_TYPE = "application/grpc"
_SMALL = 1 << 12  # bytes: smaller parts of a message are joined, because a small object takes many times its content
# The characters of a status text that are not percent-encoded.
_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

BEGINNING = STATUS_200 + encoded(b"content-type", _TYPE.encode())
"""The headers with which every gRPC response begins, with or without messages."""
_ACCEPTS = encoded(b"grpc-accept-encoding", ",".join(_WINDOWS).encode())
_OK = encoded(b"grpc-status", b"0")

Metadata = tuple[tuple[str, "str | bytes"], ...]
Trailers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A call's headers, parsed."""

    path: str
    timeout: float | None
    """Seconds until the deadline; None if the caller gave no timeout."""
    window: int
    """zlib's `wbits` for compressed messages; 0 if messages may not be compressed."""
    metadata: Metadata


class Refusal(NamedTuple):
    """The headers that answer a call whose own headers are invalid or not gRPC."""

    block: bytes


def asked(head: Head) -> Asked | Refusal:
    fields = dict(head.fields)
    kind = fields.get("content-type", "").lower()
    if head.method != "POST":
        return Refusal(encoded(b":status", b"405") + encoded(b"allow", b"POST"))
    if kind != _TYPE and not kind.startswith((f"{_TYPE}+", f"{_TYPE};")):
        return Refusal(encoded(b":status", b"415"))
    try:
        if head.too_large:
            raise TooLargeError("headers", limit=MOST_HEADERS, found=head.size)
        if len(fields) < len(head.fields):
            _check_once(head.fields)
        return Asked(head.path, _timeout(fields), _window(fields), _metadata(head.fields))
    except (ParamsyncError, NotImplementedError) as error:
        return Refusal(BEGINNING + _ACCEPTS + ending(*status_of(error)))


MOST_HEADERS = 16 << 10
"""The limit for a call's headers in bytes, counted as in RFC 9113."""


def _check_once(fields: Iterable[tuple[str, str]]) -> None:
    counts = Counter(name for name, _ in fields)
    if repeated := [name for name in sorted(_ONCE) if counts[name] > 1]:
        raise RequestError(f"{repeated[0]}: expected it once, found it {counts[repeated[0]]} times")


def _timeout(fields: dict[str, str]) -> float | None:
    text = fields.get("grpc-timeout")
    if text is None:
        return None
    if (found := _TIMEOUT.fullmatch(text)) is None:
        raise RequestError(f"grpc-timeout: expected up to 8 digits and one of HMSmun, found {text[:20]!r}")
    return int(found[1]) * _SECONDS[found[2]]


def _window(fields: dict[str, str]) -> int:
    encoding = fields.get("grpc-encoding", "identity")
    if encoding not in _WINDOWS:
        raise NotImplementedError(f"grpc-encoding: expected one of {', '.join(_WINDOWS)}, found {encoding[:20]!r}")
    return _WINDOWS[encoding]


def _metadata(fields: Iterable[tuple[str, str]]) -> Metadata:
    return tuple((name, _binary(name, value)) for name, value in fields if name not in _OURS)


def _binary(name: str, value: str) -> str | bytes:
    if not name.endswith("-bin"):
        return value
    try:
        return b"".join(base64.b64decode(part + "=" * (-len(part) % 4), validate=True) for part in value.split(","))
    except ValueError as error:  # binascii.Error is a ValueError; text that is not ASCII raises ValueError itself
        raise RequestError(f"{name[:50]}: expected base64, found what is none") from error


def ending(code: grpc.StatusCode, text: str = "", trailers: Trailers = ()) -> bytes:
    """Write the headers that end a call."""
    if code is grpc.StatusCode.OK:
        status = _OK
    else:
        status = encoded(b"grpc-status", str(code.value[0]).encode())
        status += encoded(b"grpc-message", quote(text, safe=_SAFE).encode())
    return status + b"".join([encoded(name.encode(), value.encode()) for name, value in trailers])


def unknown(said: Asked) -> bytes:
    """Write the headers that answer a call of an unknown method."""
    text = f"there is no method {one_line(said.path)}"
    return BEGINNING + ending(grpc.StatusCode.UNIMPLEMENTED, text)


class Message(NamedTuple):
    """A message as it was received."""

    content: bytes
    compressed: bool

    def unpacked(self, window: int, *, most: int) -> bytes:
        """Decompress the content. Safe on any thread.

        Raises RequestError if the content is compressed in another way, and TooLargeError.
        """
        try:
            zipped = zlib.decompressobj(window)
            content = zipped.decompress(self.content, most + 1)
        except zlib.error as error:
            raise RequestError("message: expected it compressed as grpc-encoding says, found what is not") from error
        if len(content) > most:
            raise TooLargeError("message, once it is unpacked", limit=most, found=len(content))
        if not zipped.eof or zipped.unused_data:
            raise RequestError("message: expected it compressed as grpc-encoding says, found a part of that, or more")
        return content


class Messages:
    """Cuts a call's content into messages."""

    __slots__ = ("_is_compressed", "_missing", "_most", "_parts", "_prefix", "held")

    def __init__(self, most: int) -> None:
        self._most = most
        self._prefix = b""
        self._parts: list[bytes | bytearray] = []
        self._missing = -1  # bytes of the current message still to come; -1 until its prefix is whole
        self._is_compressed = False
        self.held = 0
        """Bytes received of the current message."""

    @property
    def is_within(self) -> bool:
        """Whether only a part of the current message has come."""
        return self._missing >= 0 or bool(self._prefix)

    def came(self, content: bytes, *, ended: bool, most: int | None = None) -> list[Message]:
        """Take received content, and return the messages that the content completes. Content after `most` messages is
        dropped. Raises TooLargeError, RequestError.
        """
        if self._is_whole(content):
            return [Message(content[PREFIX.size :], compressed=False)]
        found = self._cut(content, most)
        if ended and self.is_within:
            raise RequestError("message: expected as many bytes as its length says, found that they end before")
        return found

    def _is_whole(self, content: bytes) -> bool:
        """Whether the content is exactly one message, as in most calls, and needs no cutting."""
        if self.is_within or len(content) < PREFIX.size:
            return False
        flag, size = PREFIX.unpack_from(content)
        return not flag and len(content) == PREFIX.size + size <= PREFIX.size + self._most

    def _cut(self, content: bytes, most: int | None) -> list[Message]:
        found: list[Message] = []
        at = 0
        while len(found) != most:
            if self._missing < 0:
                taken = PREFIX.size - len(self._prefix)
                self._prefix += content[at : at + taken]
                at += taken
                if len(self._prefix) < PREFIX.size:
                    return found
                self._begin()
            part = content[at : at + self._missing]
            if len(part) < self._missing:
                self._hold(part)
                return found
            at += len(part)
            found.append(self._whole(part))
        return found

    def _begin(self) -> None:
        flag, self._missing = PREFIX.unpack(self._prefix)
        if flag > 1:
            raise RequestError(f"message: expected 0 or 1 before its length, found {flag}")
        if self._missing > self._most:
            raise TooLargeError("message", limit=self._most, found=self._missing)
        self._prefix, self._is_compressed = b"", flag == 1

    def _hold(self, part: bytes) -> None:
        self._missing -= len(part)
        self.held += len(part)
        last = self._parts[-1] if self._parts else b""
        if isinstance(last, bytearray) and len(last) < _SMALL:
            last += part
        elif part:
            self._parts.append(bytearray(part) if len(part) < _SMALL else part)

    def _whole(self, part: bytes) -> Message:
        if self._parts:
            self._parts.append(part)
            part = b"".join(self._parts)
            self._parts, self.held = [], 0
        self._missing = -1
        return Message(part, self._is_compressed)
