"""The layout of HTTP/2's frames, and functions that make frames."""

from __future__ import annotations

from struct import Struct

from paramsync.http2.errors import ErrorCode

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = Struct(">IBI")  # length in the upper 24 bits and type in the lower 8; flags; stream
HEADER_SIZE = 9
PRIORITY_SIZE = 5
WORD = Struct(">I")
SETTING = Struct(">HI")
LARGEST_NUMBER = (1 << 31) - 1  # the largest number of a stream, and the largest window
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME = 1 << 14
LARGEST_FRAME = (1 << 24) - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

ENABLE_PUSH = 0x2
MAX_CONCURRENT_STREAMS = 0x3
INITIAL_WINDOW_SIZE = 0x4
MAX_FRAME_SIZE = 0x5
MAX_HEADER_LIST_SIZE = 0x6

SETTINGS_ACK = HEADER.pack(SETTINGS, ACK, 0)


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview) -> bytes:
    return HEADER.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in values.items()))


def window_update(stream: int, size: int) -> bytes:
    return HEADER.pack(4 << 8 | WINDOW_UPDATE, 0, stream) + WORD.pack(size)


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    return HEADER.pack(4 << 8 | RST_STREAM, 0, stream) + WORD.pack(code)


def goaway(last: int, code: ErrorCode, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, WORD.pack(last) + WORD.pack(code) + text.encode())


def header_block(stream: int, block: bytes, ended: bool, largest: int) -> bytes:
    """Make a HEADERS frame for the block, and CONTINUATION frames if it is larger than `largest` bytes."""
    end = END_STREAM if ended else 0
    if len(block) <= largest:
        return HEADER.pack(len(block) << 8 | HEADERS, end | END_HEADERS, stream) + block
    parts = [block[start : start + largest] for start in range(0, len(block), largest)]
    middle = [frame(CONTINUATION, 0, stream, part) for part in parts[1:-1]]
    return b"".join(
        (frame(HEADERS, end, stream, parts[0]), *middle, frame(CONTINUATION, END_HEADERS, stream, parts[-1]))
    )
