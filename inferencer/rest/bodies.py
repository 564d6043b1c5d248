"""Bodies of requests: JSON to Python's values, one object with each key once. Text in, nothing of models known."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Any

from paramsync.errors import InputError, RequestError

_SPACE = re.compile(r"[ \t\n\r]*")
_DEEPEST = 2  # an object in the object that a body is; what is below is read as a whole


@dataclass(frozen=True, slots=True)
class Body:
    """`infinities` says whether there may be any: otherwise a number that is one was written too large."""

    fields: dict[str, Any]
    infinities: bool

    def text(self, key: str) -> str:
        """A string, or an empty one where there is none. Raises InputError."""
        found = self.fields.get(key, "")
        if not isinstance(found, str):
            raise InputError(key, expected="a string", found=kind(found))
        return found

    def listed(self, key: str) -> list[Any]:
        """A list of one or more. Raises InputError."""
        if key not in self.fields:
            raise InputError("body", expected=f"key {key!r}", found=", ".join(map(repr, self.fields)) or "none")
        found = self.fields[key]
        if not isinstance(found, list) or not found:
            raise InputError(repr(key), expected="a list of one or more", found=kind(found))
        return found


def parsed(content: bytes) -> Body:
    """Raises RequestError. Any thread may call it; it lets others have their turn between rows."""
    try:
        text = content.decode("utf-8-sig")
        reader = _Reader(text)
        at = reader.skip(0)
        if text[at : at + 1] != "{":
            raise InputError("body", expected="a JSON object", found=repr(text[at : at + 20]) if text else "nothing")
        fields, at = reader.object(at, 0)
        if reader.skip(at) != len(text):
            raise JSONDecodeError("Extra data", text, at)
    except RecursionError as error:
        raise RequestError("body: expected JSON, found more levels of it than anybody needs") from error
    except ValueError as error:
        raise RequestError(f"body: expected JSON, found {_wrong(error)}") from error
    return Body(fields, infinities="Infinity" in text)


def kind(value: Any) -> str:
    """What JSON calls it."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    names = {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _wrong(error: ValueError) -> str:
    if isinstance(error, JSONDecodeError):
        return f"{error.msg.lower()} at byte {error.pos} or near it"
    return "bytes that are no UTF-8" if isinstance(error, UnicodeDecodeError) else "a number of too many digits"


class _Reader:
    """Walks the objects and lists near the top of a body, so that no single step takes long; rows are read whole."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._read = json.JSONDecoder(object_pairs_hook=_once).raw_decode

    def skip(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        assert found is not None  # it matches nothing too
        return found.end()

    def object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        pairs: list[tuple[str, Any]] = []
        at = self.skip(at + 1)
        if self._is("}", at):
            return {}, at + 1
        while True:
            if not self._is('"', at):
                raise JSONDecodeError("No name of a key", self._text, at)
            key, at = self._read(self._text, at)
            at = self.skip(at)
            if not self._is(":", at):
                raise JSONDecodeError("No colon after a key", self._text, at)
            value, at = self._value(self.skip(at + 1), depth + 1)
            pairs.append((key, value))
            at = self.skip(at)
            if self._is("}", at):
                return _once(pairs), at + 1
            at = self._comma(at)

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        if self._is("{", at) and depth < _DEEPEST:
            return self.object(at, depth)
        if self._is("[", at) and self._text[(first := self.skip(at + 1)) : first + 1] in ("[", "{"):
            return self._rows(first)
        return self._read(self._text, at)

    def _rows(self, at: int) -> tuple[list[Any], int]:
        rows = []
        while True:
            row, at = self._read(self._text, at)
            rows.append(row)
            at = self.skip(at)
            if self._is("]", at):
                return rows, at + 1
            at = self._comma(at)

    def _comma(self, at: int) -> int:
        if not self._is(",", at):
            raise JSONDecodeError("No comma", self._text, at)
        return self.skip(at + 1)

    def _is(self, one: str, at: int) -> bool:
        return self._text.startswith(one, at)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Which of two values under one key counts, nobody could know."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"key {twice!r}", expected="once in an object", found=f"{names.count(twice)} times")
    return found
