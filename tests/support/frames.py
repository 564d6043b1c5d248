"""HTTP/2 frames made by hand, for gRPC clients that no library offers: clients that never read or send too little."""

from __future__ import annotations

import socket
import struct

from tests.support.running import LONG

PREDICT = "/tensorflow.serving.PredictionService/Predict"
_DATA, _HEADERS, _RESET, _SETTINGS = 0, 1, 3, 4
_END_STREAM, _END_HEADERS = 1, 4
_INITIAL_WINDOW = 4
_LARGEST = 16_000


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def connected(port: int, *, window: int = 65535, address: str = "127.0.0.1") -> socket.socket:
    """Connect a client at `address` that lets the server send `window` bytes of an answer."""
    one = socket.create_connection(("127.0.0.1", port), LONG, (address, 0))
    settings = frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, window))
    one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
    return one


def headers(stream: int, path: str = PREDICT) -> bytes:
    """The headers of a call. Its message must follow."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "here",
        "te": "trailers", "content-type": "application/grpc",
    }  # fmt: skip
    content = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    return frame(_HEADERS, _END_HEADERS, stream, content)


def reset(stream: int) -> bytes:
    """A frame that cancels a call."""
    return frame(_RESET, 0, stream, struct.pack(">I", 8))


def message(stream: int, content: bytes, *, most: int | None = None) -> bytes:
    """The message of a call and its end; with `most`, only the first `most` bytes, without the end."""
    whole = b"\0" + struct.pack(">I", len(content)) + content
    if most is not None:
        return frame(_DATA, 0, stream, whole[:most])
    parts = [whole[at : at + _LARGEST] for at in range(0, len(whole), _LARGEST)]
    return b"".join(frame(_DATA, 0, stream, part) for part in parts[:-1]) + frame(_DATA, _END_STREAM, stream, parts[-1])


def _text(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()
