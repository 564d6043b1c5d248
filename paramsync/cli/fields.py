"""Protobuf messages field by field, where building them whole could take a hundred times their bytes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any

from google.protobuf.message import DecodeError

from paramsync.errors import GraphError
from paramsync.tensorbundle.sstable import read_varint

_MOST = 2_000_000  # fields of a message
_WHOLE = 1 << 16  # bytes of a message that is built without a look
_LARGEST = 1 << 22  # bytes of any message that is built
_FIXED = {1: 8, 5: 4}  # bytes of numbers that say no length, by wire type


def each(content: memoryview, number: int, what: str, *, limit: int) -> Iterator[memoryview]:
    """The values of a repeated field, one by one. Raises GraphError once there are more than `limit`."""
    found = (value for one, _, value in _fields(content, what) if one == number)
    for at, value in enumerate(found):
        if at == limit:
            raise GraphError(f"{what}: expected at most {limit} of each part, found more")
        yield value


def last(content: memoryview, number: int, what: str) -> memoryview:
    """The value of a field that comes once: the last one counts. Nothing where it is not there."""
    found = memoryview(b"")
    for one, _, value in _fields(content, what):
        if one == number:
            found = value
    return found


def numbers(content: memoryview, what: str) -> set[int]:
    """Of the fields that are there."""
    return {one for one, _, _ in _fields(content, what)}


def head(kind: Any, content: memoryview, what: str) -> Any:
    """A message of the fields in front of the first that `kind` does not know. Raises GraphError."""
    known = {field.number for field in kind.DESCRIPTOR.fields}
    first = itertools.takewhile(lambda one: one[0] in known, _fields(content, what))
    return build(kind, memoryview(b"".join(whole for _, whole, _ in first)), what)


def build(
    kind: Any, content: memoryview, what: str, *, without: Collection[int] = (), largest: int = _LARGEST
) -> Any:  # fmt: skip
    """A message of the fields that `kind` knows, but for those `without` and those of more bytes than `largest`.

    Raises GraphError for what is no such message, and for one that is too large even so.
    """
    try:
        if len(content) <= _WHOLE:
            return kind.FromString(bytes(content))
        known = {field.number for field in kind.DESCRIPTOR.fields} - set(without)
        kept = [whole for number, whole, _ in _fields(content, what) if number in known and len(whole) <= largest]
        size = sum(map(len, kept))
        if size > _LARGEST:
            raise GraphError(f"{what}: expected a {kind.DESCRIPTOR.name} of at most {_LARGEST} bytes, found {size}")
        return kind.FromString(b"".join(kept))
    except DecodeError as error:
        raise GraphError(f"{what}: expected a {kind.DESCRIPTOR.name}, found other bytes") from error


def _fields(content: memoryview, what: str) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Each field: its number, all of its bytes, and its value's where that has a length."""
    at = 0
    for _ in range(_MOST):
        if at == len(content):
            return
        try:
            tag, value = read_varint(content, at)
            kind = tag & 7
            if kind == 0:
                _, end = read_varint(content, value)
            elif kind == 2:
                length, value = read_varint(content, value)
                end = value + length
            else:
                end = value + _FIXED[kind]
        except (IndexError, ValueError, KeyError):
            end = len(content) + 1
        if end > len(content):
            raise GraphError(f"{what}: expected a graph, found bytes that are no message, or not all of one")
        yield tag >> 3, content[at:end], content[value:end]
        at = end
    raise GraphError(f"{what}: expected a graph, found a message of more than {_MOST} parts")
