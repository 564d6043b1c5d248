"""Error codes of HTTP/2, and exceptions that end a connection or one stream."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """The codes of RFC 9113, section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Http2Error(Exception):
    """Ends the connection: the peer broke the protocol or exceeded a limit."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text


class StreamError(Exception):
    """Ends one stream; the connection goes on."""

    def __init__(self, stream: int, code: ErrorCode, text: str) -> None:
        super().__init__(f"{code.name} of stream {stream}: {text}")
        self.stream = stream
        self.code = code


class MalformedHeadError(Exception):
    """A decodable field section that RFC 9113 forbids."""
