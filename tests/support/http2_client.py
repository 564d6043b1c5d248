"""An HTTP/2 client that sends frames that no library would send, and reads the server's reaction."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hpack import Decoder

from tests.support.frames import frame
from tests.support.running import LONG

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 1
END_HEADERS = 4
PADDED = 8
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(1, 6)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_WINDOW = 2**31 - 1


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    content: bytes


@dataclass
class Response:
    """The response on one stream."""

    fields: dict[str, str] = field(default_factory=dict)
    content: bytes = b""
    code: int | None = None
    """The code of RST_STREAM."""
    is_over: bool = False

    @property
    def status(self) -> int | None:
        """The gRPC status."""
        return int(self.fields["grpc-status"]) if "grpc-status" in self.fields else None

    @property
    def messages(self) -> list[bytes]:
        found, at = [], 0
        while at < len(self.content):
            (size,) = struct.unpack_from(">I", self.content, at + 1)
            found.append(self.content[at + 5 : at + 5 + size])
            at += 5 + size
        return found


class Http2Client:
    """One connection. By itself it sends only the preface; it reads only when a method needs an answer."""

    def __init__(
        self,
        port: int,
        *,
        window: int = LARGEST_WINDOW,
        connection_window: int = LARGEST_WINDOW - 65535,
        receive_buffer: int | None = None,
        preface: bool = True,
    ) -> None:
        """The server may send `window` bytes of each answer, and of all answers `connection_window` more than usual."""
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(LONG)
        self.socket.connect(("127.0.0.1", port))
        self.responses: dict[int, Response] = {}
        self.settings: dict[int, int] = {}
        self.code: int | None = None
        """The code of the server's last GOAWAY."""
        self.text = b""
        self.is_closed = False
        self.pongs = 0
        self._decoder = Decoder()
        self._rest = b""
        self._block = b""
        if preface:
            self.send(PREFACE + settings({INITIAL_WINDOW_SIZE: window}))
            self.send(window_update(0, connection_window) if connection_window else b"")

    def __enter__(self) -> Http2Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, content: bytes) -> bool:
        """Send bytes. Returns False if the server has closed the connection."""
        try:
            self.socket.sendall(content)
        except (ConnectionResetError, BrokenPipeError):
            return False
        return True

    def response(self, stream: int) -> Response:
        """Wait until the stream or the connection is over, and return the response."""
        response = self.responses.setdefault(stream, Response())
        while not response.is_over and self._read():
            pass
        return response

    def flood(self, content: bytes, times: int) -> int | None:
        """Send `content` up to `times` times, until the server gives up. Returns the code of its GOAWAY."""
        for _ in range(times):
            if not self.send(content):
                break
            while not self.is_closed and select.select([self.socket], [], [], 0)[0]:
                self._read()
            if self.code is not None or self.is_closed:
                break
        return self.code

    def closed(self) -> int | None:
        """Wait until the server closes the connection, and return the code of its GOAWAY."""
        while self._read():
            pass
        return self.code

    def answers(self) -> bool:
        """Whether the server answers a PING, and so has read all bytes sent before."""
        before = self.pongs
        self.send(ping(b"answers?"))
        while self.pongs == before and self._read():
            pass
        return self.pongs > before

    def _read(self) -> bool:
        """Read what has come. False: the connection is over."""
        if not self.is_closed:
            try:
                content = self.socket.recv(1 << 16)
            except ConnectionResetError:
                content = b""
            self.is_closed = not content
            self._take(content)
        return not self.is_closed

    def _take(self, content: bytes) -> None:
        content, at = self._rest + content, 0
        while len(content) - at >= 9:
            head, flags, stream = struct.unpack_from(">IBI", content, at)
            length = head >> 8
            if len(content) - at < 9 + length:
                break
            self._take_frame(Frame(head & 255, flags, stream, content[at + 9 : at + 9 + length]))
            at += 9 + length
        self._rest = content[at:]

    def _take_frame(self, frame: Frame) -> None:
        response = self.responses.setdefault(frame.stream, Response())
        if frame.kind == DATA:
            response.content += frame.content
        elif frame.kind in (HEADERS, CONTINUATION):
            self._block += frame.content
            if frame.flags & END_HEADERS:
                response.fields.update((str(name), str(value)) for name, value in self._decoder.decode(self._block))
                self._block = b""
        elif frame.kind == RST_STREAM:
            (code,) = struct.unpack(">I", frame.content)
            response.code = code if not response.is_over else response.code
            response.is_over = True
        elif frame.kind == GOAWAY:
            _, self.code = struct.unpack_from(">II", frame.content)
            self.text = frame.content[8:]
        elif frame.kind == PING and frame.flags & ACK:
            self.pongs += 1
        elif frame.kind == SETTINGS and not frame.flags & ACK:
            self.settings |= dict(struct.iter_unpack(">HI", frame.content))
        if frame.kind in (DATA, HEADERS) and frame.flags & END_STREAM:
            response.is_over = True


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", name, value) for name, value in values.items()))


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


def rst_stream(stream: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def ping(payload: bytes = b"12345678") -> bytes:
    return frame(PING, 0, 0, payload)


def goaway(last: int = 0, code: int = 0) -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last, code))


def data(stream: int, content: bytes, *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream, content)


def prefixed(content: bytes, *, compressed: int = 0, size: int | None = None) -> bytes:
    """A gRPC message; its prefix may state a wrong `size`."""
    return struct.pack(">BI", compressed, len(content) if size is None else size) + content


def literals(fields: Iterable[tuple[str, str]]) -> bytes:
    """A block of headers that adds no entries to HPACK's table."""
    return b"".join(b"\0" + string(name.encode()) + string(value.encode()) for name, value in fields)


def string(content: bytes) -> bytes:
    return integer(len(content), 7) + content


def integer(number: int, bits: int, first: int = 0) -> bytes:
    most = (1 << bits) - 1
    if number < most:
        return bytes([first | number])
    octets, number = [first | most], number - most
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    return bytes([*octets, number])


def request_fields(path: str, **changes: str | None) -> list[tuple[str, str]]:
    """The headers of a gRPC call. In `changes`, `_` stands for `-`, a leading `_` for `:`; None removes a header."""
    fields: dict[str, str | None] = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "here",
        "te": "trailers", "content-type": "application/grpc",
    }  # fmt: skip
    for name, value in changes.items():
        fields[(":" + name[1:] if name.startswith("_") else name).replace("_", "-")] = value
    return [(name, value) for name, value in fields.items() if value is not None]


def request(stream: int, path: str, *, end: bool = False, **changes: str | None) -> bytes:
    return headers(stream, literals(request_fields(path, **changes)), end=end)


def headers(stream: int, block: bytes, *, end: bool = False) -> bytes:
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block)
