"""Parses large messages in pieces, so that no step holds the GIL for long.

Parsing 60 MB of tiny fields at once takes gigabytes of memory, and holds the GIL for seconds.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError, Message

from paramsync.errors import InputError, RequestError
from paramsync.rpc.wire_fields import SIZED, Fields
from paramsync.tensorbundle.sstable import varint

from .unfolding import VARINT_BYTES

_M = TypeVar("_M", bound=Message)

PIECE = 1 << 17  # bytes; parsing so many takes a dozen milliseconds at worst
MOST_FIELDS = 1 << 20
"""The limit of fields in a message above PIECE bytes, fields of nested messages above PIECE bytes included.

A smaller nested message counts as one field, and so do packed values."""
_DEEPEST = 64  # levels of nested messages; protobuf itself allows 100
_FIRST = 64  # fields that `beginning` looks at
_BRIEF = 4096  # bytes: `beginning` leaves out longer fields


def read(kind: type[_M], content: bytes) -> _M:
    """Parse a request. Raises RequestError for invalid bytes, InputError for too many fields. Safe on any thread."""
    try:
        return parse(kind, content)
    except DecodeError as error:
        name, found = kind.DESCRIPTOR.full_name, f"{len(content)} bytes that are none"
        raise RequestError(f"request: expected a {name}, found {found}") from error


def beginning(kind: type[_M], content: bytes) -> _M:
    """Parse only the short fields at the beginning of a request, which name its model. Fast for any size of request.
    Raises DecodeError for invalid bytes.
    """
    fields, parts, at = Fields(content, _FIRST), [], 0
    while at < len(content) and fields.left:
        after = fields.field(at, len(content))[2]
        if after - at <= _BRIEF:
            parts.append(content[at:after])
        at = after
    return kind.FromString(b"".join(parts))


def parse(kind: type[_M], content: bytes) -> _M:
    """Parse a message, with the same result as `kind.FromString`. Safe on any thread.
    Raises DecodeError for invalid bytes and for groups, which our messages do not use; InputError for a large message
    with too many fields.
    """
    if len(content) <= PIECE:
        return kind.FromString(content)
    message = kind()
    _Merge(content).merge(message, 0, len(content), 0)
    return message


class _Merge:
    """Walks one message's bytes. Splits fields above PIECE bytes; passes all others to protobuf whole."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._fields = Fields(content, MOST_FIELDS)

    def merge(self, message: Message, at: int, end: int, depth: int) -> None:
        """Add the fields between two positions to the message, a piece at a time."""
        if depth > _DEEPEST:
            raise DecodeError("messages in messages, too deep")
        fields = message.DESCRIPTOR.fields_by_number
        begin = at  # the start of the next piece
        while at < end:
            if short := self._short(at, end):
                at = short
                if at - begin > PIECE:
                    self._parse(message, begin, at)
                    begin = at
                continue
            number, body, after = self._field(at, end)
            if after - body > PIECE and self._parts(message, fields.get(number), at, begin, body, after, depth):
                begin = after
            elif after - begin > PIECE:
                self._parse(message, begin, after)
                begin = after
            at = after
        self._parse(message, begin, end)

    def _parts(
        self, message: Message, field: Field | None, at: int, begin: int, body: int, end: int, depth: int
    ) -> bool:
        """Parse the piece before a large field, then the field in parts. Returns False if the field cannot be split."""
        if field is None or not (field.message_type or field.type in VARINT_BYTES):
            return False
        self._parse(message, begin, at)
        if not field.message_type:
            self._numbers(message, field, body, end)
            return True
        inner = getattr(message, field.name)
        if field.message_type.GetOptions().map_entry:
            if not self._entry(inner, field.message_type, body, end, depth):
                self._parse(message, at, end)
            return True
        if field.is_repeated:
            inner = inner.add()
        else:
            inner.SetInParent()
        self.merge(inner, body, end, depth + 1)
        return True

    def _entry(self, entries: object, kind: object, at: int, end: int, depth: int) -> bool:
        """Add an entry of a map from strings to messages. Returns False if the map has other types."""
        key, value = kind.fields_by_number[1], kind.fields_by_number[2]  # type: ignore[attr-defined]
        if key.type != Field.TYPE_STRING or not value.message_type:
            return False
        name, values = "", []
        while at < end:
            number, body, at = self._field(at, end)
            if number == 1:
                name = _text(self._content[body:at])
            elif number == 2:
                values.append((body, at))
        entries.pop(name, None)  # type: ignore[attr-defined]  # the last entry of a name counts
        inner = entries[name]  # type: ignore[index]
        for body, after in values:
            self.merge(inner, body, after, depth + 1)
        return True

    def _numbers(self, message: Message, field: Field, at: int, end: int) -> None:
        """Add packed varints. A varint ends with the first byte below 128."""
        tag = varint(field.number << 3 | SIZED)
        while at < end:
            after = min(at + PIECE, end)
            while after < end and self._content[after - 1] & 0x80:
                after += 1
                if after - at > PIECE + 10:
                    raise DecodeError("a number that does not end")
            part = self._content[at:after]
            message.MergeFromString(tag + varint(len(part)) + part)
            at = after

    def _parse(self, message: Message, begin: int, end: int) -> None:
        if begin < end:
            message.MergeFromString(self._content[begin:end])

    def _short(self, at: int, end: int) -> int:
        """Skip length-delimited fields, such as strings, whose tag and length take one byte each.

        Stops after PIECE bytes. Returns where the fields end, or 0 if there are none.
        """
        content, left, most, last = self._content, self._fields.left, at + PIECE, end - 1
        begin = at
        while at < last and content[at] & 0x87 == SIZED and content[at + 1] < 0x80 and at < most and left > 0:
            after = at + 2 + content[at + 1]
            if after > end or content[at] < 8:
                break
            at = after
            left -= 1
        self._fields.left = left
        return at if at > begin else 0

    def _field(self, at: int, end: int) -> tuple[int, int, int]:
        if not self._fields.left:
            expected = f"at most {MOST_FIELDS} fields in a message above {PIECE} bytes; numbers may be packed"
            raise InputError("request", expected=expected, found="more")
        return self._fields.field(at, end)


def _text(content: bytes) -> str:
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError("a name that is not UTF-8") from error
