"""An HTTP/2 client that sends frames that no library would send, and reads the server's reaction."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from hpack import Decoder

from paramsync.http2 import frames
from paramsync.http2.errors import ErrorCode
from paramsync.http2.frames import ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADER, HEADER_SIZE, HEADERS
from tests.http2 import wire
from tests.http2.wire import Frame
from tests.support.running import LONG

PREDICT = "/tensorflow.serving.PredictionService/Predict"
LARGEST_WINDOW = 2**31 - 1
_PART = 16_000  # bytes of a message in one frame


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
            self.send(frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: window}))
            self.send(frames.window_update(0, connection_window) if connection_window else b"")

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
        """Read the bytes that have come. Returns False if the connection is over."""
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
        while len(content) - at >= HEADER_SIZE:
            end = at + HEADER_SIZE + (HEADER.unpack_from(content, at)[0] >> 8)
            if len(content) < end:
                break
            [frame] = wire.split(content[at:end])
            self._take_frame(frame)
            at = end
        self._rest = content[at:]

    def _take_frame(self, frame: Frame) -> None:
        response = self.responses.setdefault(frame.stream, Response())
        if frame.kind == DATA:
            response.content += frame.payload
        elif frame.kind in (HEADERS, CONTINUATION):
            self._block += frame.payload
            if frame.flags & END_HEADERS:
                response.fields.update((str(name), str(value)) for name, value in self._decoder.decode(self._block))
                self._block = b""
        elif frame.kind == frames.RST_STREAM:
            (code,) = struct.unpack(">I", frame.payload)
            response.code = code if not response.is_over else response.code
            response.is_over = True
        elif frame.kind == frames.GOAWAY:
            _, self.code = struct.unpack_from(">II", frame.payload)
            self.text = frame.payload[8:]
        elif frame.kind == frames.PING and frame.flags & ACK:
            self.pongs += 1
        elif frame.kind == frames.SETTINGS and not frame.flags & ACK:
            self.settings |= dict(struct.iter_unpack(">HI", frame.payload))
        if frame.kind in (DATA, HEADERS) and frame.flags & END_STREAM:
            response.is_over = True


def rst_stream(stream: int) -> bytes:
    return frames.rst_stream(stream, ErrorCode.CANCEL)


def ping(payload: bytes = b"12345678") -> bytes:
    return frames.frame(frames.PING, 0, 0, payload)


def prefixed(content: bytes, *, compressed: int = 0, size: int | None = None) -> bytes:
    """A gRPC message; its prefix may state a wrong `size`."""
    return struct.pack(">BI", compressed, len(content) if size is None else size) + content


def message(stream: int, content: bytes, *, most: int | None = None) -> bytes:
    """Return the message of a call and its end; with `most`, only the first `most` bytes, without the end."""
    whole = prefixed(content)
    if most is not None:
        return wire.data(stream, whole[:most])
    parts = [whole[at : at + _PART] for at in range(0, len(whole), _PART)]
    return b"".join(wire.data(stream, part, end=part is parts[-1]) for part in parts)


def literals(fields: Iterable[tuple[str, str]]) -> bytes:
    """A block of headers that adds no entries to HPACK's table."""
    return wire.encoded_fields((name.encode(), value.encode()) for name, value in fields)


def request_fields(path: str, **changes: str | None) -> list[tuple[str, str]]:
    """Return the headers of a gRPC call with `changes`: `_` stands for `-`, a leading `_` for `:`, None removes one."""
    fields: dict[str, str | None] = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "here",
        "te": "trailers", "content-type": "application/grpc",
    }  # fmt: skip
    for name, value in changes.items():
        fields[(":" + name[1:] if name.startswith("_") else name).replace("_", "-")] = value
    return [(name, value) for name, value in fields.items() if value is not None]


def request(stream: int, path: str = PREDICT, *, end: bool = False, **changes: str | None) -> bytes:
    return wire.headers(stream, literals(request_fields(path, **changes)), end=end)


def connected(port: int, *, window: int = frames.DEFAULT_WINDOW, address: str = "127.0.0.1") -> socket.socket:
    """Connect a client at `address` that lets the server send `window` bytes of an answer."""
    client = socket.create_connection(("127.0.0.1", port), LONG, (address, 0))
    client.sendall(frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: window}))
    return client
