"""Estimates the memory of a message before it is parsed: tiny fields take many times their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from paramsync.rpc.wire_fields import Fields

_NEAR = 4096  # bytes: smaller fields are estimated without looking into them
_ALL = 1 << 20  # most fields looked at
_DEEPEST = 64
_OF_MESSAGE = 224  # bytes that a message or an entry of a map takes by itself
_OF_STRING = 40
_TIMES = 25  # bytes in memory for each byte not looked at; measured: up to 22 in messages, 86 in empty entries of maps
_GROWN = 2  # a growing list is copied, and leaves its old memory behind
VARINT_BYTES = {  # bytes in memory of one value, by type
    FieldDescriptor.TYPE_INT64: 8,
    FieldDescriptor.TYPE_UINT64: 8,
    FieldDescriptor.TYPE_SINT64: 8,
    FieldDescriptor.TYPE_INT32: 4,
    FieldDescriptor.TYPE_UINT32: 4,
    FieldDescriptor.TYPE_SINT32: 4,
    FieldDescriptor.TYPE_ENUM: 4,
    FieldDescriptor.TYPE_BOOL: 1,
}


def unfolded(kind: Any, content: bytes, *, fields: int = _ALL) -> int:
    """Return an upper bound, in bytes, for the memory of the parsed message. Looks at `fields` fields at most.

    Safe on any thread. The content may be any bytes.
    """
    reading = Fields(content, fields)
    try:
        return _size(reading, kind, 0, len(content), 0)
    except DecodeError:  # the parser will report the error
        return len(content)


def _size(reading: Fields, kind: Any, at: int, end: int, depth: int) -> int:
    found = _OF_MESSAGE
    known: Any = kind.fields_by_number
    while at < end:
        if not reading.left or depth > _DEEPEST:
            return found + (end - at) * (_TIMES if depth else 4 * _TIMES)
        number, body, after = reading.field(at, end)
        field, size = known.get(number), after - body
        at = after
        if field is None:
            found += _OF_STRING + size
        elif field.message_type is not None:
            inside = size * _TIMES if size <= _NEAR else _size(reading, field.message_type, body, after, depth + 1)
            found += _OF_MESSAGE + inside
        elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            found += _OF_STRING + size
        elif field.type in VARINT_BYTES and reading.sized:
            count = size if size <= _NEAR else _count(reading.content[body:after])
            found += _GROWN * VARINT_BYTES[field.type] * count
        else:  # a single number, or packed numbers of a fixed size
            found += _GROWN * max(size, 8)
    return found


def _count(content: bytes) -> int:
    """Count the varints that end in these bytes."""
    return int(np.count_nonzero(np.frombuffer(content, np.uint8) < 0x80))
