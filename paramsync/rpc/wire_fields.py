"""Walks the fields of an unparsed protobuf message: their numbers, places and sizes."""

from __future__ import annotations

from google.protobuf.message import DecodeError

VARINT, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5  # wire types


class Fields:
    """Reads one message's bytes, up to `most` fields."""

    __slots__ = ("content", "left", "sized")

    def __init__(self, content: bytes, most: int) -> None:
        self.content = content
        self.left = most
        """How many more fields may be read: the caller checks before each field."""
        self.sized = False
        """Whether the last field has a size, as messages, strings and packed numbers do."""

    def field(self, at: int, end: int) -> tuple[int, int, int]:
        """Return the number of the field at `at`, and where its value begins and ends. Raises DecodeError."""
        self.left -= 1
        tag, body = self.number(at, end)
        kind = tag & 7
        self.sized = kind == SIZED
        if kind == SIZED:
            size, body = self.number(body, end)
            after = body + size
        elif kind == VARINT:
            after = self.number(body, end)[1]
        elif kind in (FIXED32, FIXED64):
            after = body + (4 if kind == FIXED32 else 8)
        else:
            raise DecodeError("a group")
        if after > end or not tag >> 3:
            raise DecodeError("a field that ends beyond its message")
        return tag >> 3, body, after

    def number(self, at: int, end: int) -> tuple[int, int]:
        """Return the varint at `at`, and where it ends. Raises DecodeError."""
        found = shift = 0
        for position in range(at, min(at + 10, end)):
            byte = self.content[position]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found, position + 1
            shift += 7
        raise DecodeError("a number that does not end")
