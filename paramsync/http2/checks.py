"""Checks of single frames that need no state of the connection."""

from __future__ import annotations

from paramsync.http2 import frames
from paramsync.http2.errors import ErrorCode, Http2Error, StreamError
from paramsync.http2.frames import LARGEST_NUMBER, PADDED
from paramsync.http2.sending import Stream

_ANY_SETTING = (0, (1 << 32) - 1, ErrorCode.NO_ERROR)
_SETTINGS = {  # the smallest and the largest value, and the error for other values
    frames.ENABLE_PUSH: (0, 1, ErrorCode.PROTOCOL_ERROR),
    frames.INITIAL_WINDOW_SIZE: (0, LARGEST_NUMBER, ErrorCode.FLOW_CONTROL_ERROR),
    frames.MAX_FRAME_SIZE: (frames.DEFAULT_FRAME, frames.LARGEST_FRAME, ErrorCode.PROTOCOL_ERROR),
}


def check_content(stream: Stream, size: int, content: int, ends: bool) -> None:
    if stream.ended:
        raise StreamError(stream.number, ErrorCode.STREAM_CLOSED, "DATA after the end")
    stream.room -= size
    if stream.room < 0:
        raise StreamError(stream.number, ErrorCode.FLOW_CONTROL_ERROR, "more content than the stream's window")
    if stream.missing >= 0:
        stream.missing -= content
        if stream.missing < 0 or (ends and stream.missing):
            raise StreamError(stream.number, ErrorCode.PROTOCOL_ERROR, "not the content that content-length says")


def check_setting(name: int, value: int) -> None:
    least, most, code = _SETTINGS.get(name, _ANY_SETTING)
    if not least <= value <= most:
        raise Http2Error(code, f"setting {name} is {value}")


def without_padding(number: int, flags: int, payload: bytes) -> bytes:
    """Return the block of a HEADERS frame, without padding and priority."""
    padding = 0
    if flags & PADDED:
        padding, payload = payload[0] if payload else 1, payload[1:]
    if flags & frames.HAS_PRIORITY:
        check_dependency(number, payload)
        payload = payload[frames.PRIORITY_SIZE :]
    if padding > len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[: len(payload) - padding]


def check_dependency(number: int, payload: bytes) -> None:
    if len(payload) < frames.PRIORITY_SIZE:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a priority that is not whole")
    if frames.WORD.unpack_from(payload)[0] & LARGEST_NUMBER == number:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"stream {number} depends on itself")
