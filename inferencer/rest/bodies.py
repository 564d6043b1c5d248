"""Bodies of requests: JSON to Python's values, one object with each key once. Text in, nothing of models known."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Any

from paramsync.errors import InputError, RequestError

_SPACE = re.compile(r"[ \t\n\r]*")
_WINDOW = 1 << 17  # characters, which take milliseconds to read
_DEEPEST = 32  # values in values that are larger than that
_MOST_KEYS = 4096  # of an object that is
_OPENED = re.compile(r'\[*[{"]?')
_CLOSED = str.maketrans("[{", "]}")


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
        found = "no comma" if "','" in error.msg else error.msg.lower()
        return f"{found} at byte {error.pos} or near it"
    return "bytes that are no UTF-8" if isinstance(error, UnicodeDecodeError) else "a number of too many digits"


class _Reader:
    """Walks what is larger than a window, so that no single step takes long; all else is read whole."""

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
            if len(pairs) > _MOST_KEYS:
                raise InputError("body", expected=f"at most {_MOST_KEYS} keys in a large object", found="more")
            at = self.skip(at)
            if self._is("}", at):
                return _once(pairs), at + 1
            at = self._comma(at)

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        if len(self._text) - at <= _WINDOW or self._text[at] not in "[{":
            return self._read(self._text, at)
        for size in (_WINDOW >> 7, _WINDOW):
            try:
                value, end = self._read(self._text[at : at + size], 0)
            except JSONDecodeError:  # it goes on beyond that, or is none
                continue
            return value, at + end
        if depth > _DEEPEST:
            raise RecursionError
        return self.object(at, depth) if self._is("{", at) else self._list(at, depth)

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        """As many elements at a time as end in a window; where it does not show which do, one by one."""
        values: list[Any] = []
        at = self.skip(at + 1)
        if self._is("]", at):
            return values, at + 1
        alone = 0  # until there they are read one by one
        while True:
            if self._is("]", at):
                raise JSONDecodeError("No value after a comma", self._text, at)
            if at >= alone:
                alone = self._cut(at)
                part, end = self._many(at, alone)
                values += part
                if end is not None:
                    return values, end
                if part:
                    at = self.skip(alone + 1)
                    continue
            value, at = self._value(at, depth + 1)
            values.append(value)
            at = self.skip(at)
            if self._is("]", at):
                return values, at + 1
            at = self._comma(at)

    def _cut(self, at: int) -> int:
        """The last comma in the window that seems to follow an element; the window's end, where none does."""
        opened = _OPENED.match(self._text, at)
        closed = opened[0].translate(_CLOSED)[::-1] if opened else ""
        found = self._text.rfind(f"{closed},", at, at + _WINDOW)
        return at + _WINDOW if found < 0 else found + len(closed)

    def _many(self, at: int, cut: int) -> tuple[list[Any], int | None]:
        """The elements before the cut, none where it is in one of them; where the list ends before it, its end too."""
        text = f"[{self._text[at:cut]}]"
        try:
            values, end = self._read(text, 0)
        except JSONDecodeError:
            return [], None
        if end < len(text):
            return values, at + end - 1
        return (values if self._is(",", cut) else []), None

    def _comma(self, at: int) -> int:
        if not self._is(",", at):
            raise JSONDecodeError("Expecting ','", self._text, at)
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
