"""Walks the fields of a serialised protobuf message that nobody has parsed: their numbers, places and sizes."""

from __future__ import annotations

from google.protobuf.message import DecodeError

VARINT, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5  # how values are on the wire


class Fields:
    """Reads one message's bytes, and not more than so many fields."""

    __slots__ = ("content", "left", "sized")

    def __init__(self, content: bytes, most: int) -> None:
        self.content = content
        self.left = most
        """How many fields more are looked at: whoever reads them asks, before each."""
        self.sized = False
        """Whether the field that was read last says its size, as messages, strings and packed numbers do."""

    def field(self, at: int, end: int) -> tuple[int, int, int]:
        """Its number, and where its value begins and ends. Raises DecodeError."""
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
        """A number of any length, and where it ends."""
        found = shift = 0
        for position in range(at, min(at + 10, end)):
            byte = self.content[position]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found, position + 1
            shift += 7
        raise DecodeError("a number that does not end")
