"""Bodies of requests: JSON to Python's values, one object with each key once. Text in, nothing of models known."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8, utf_8_decode
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Any

import numpy as np

from paramsync.errors import InputError, RequestError
from paramsync.host.files import shown

from .packed import Long, is_numbers, packed

Array = np.ndarray[Any, Any]

_MOST_LEVELS = 100
_IN_STRING = -1
_STEP = 1 << 16  # bytes that are looked at in one go
_FAR = 1 << 20
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_BY = np.zeros(256, np.int8)
_BY[[ord("["), ord("{")]] = 1
_BY[[ord("]"), ord("}")]] = -1


class Depths:
    """Of JSON, else of nothing in particular: whoever parses what it cuts will see. Linear in the size of the text."""

    def __init__(self, content: bytes) -> None:
        """Raises RequestError for more levels than anybody needs."""
        self._bytes = np.frombuffer(content, np.uint8)
        self._depths = np.empty(len(content), np.int8)
        inside, depth, escaped = 0, 0, False
        for at in range(0, len(content), _STEP):
            part = content[at : at + _STEP]
            if escaped:
                part = b" " + part[1:]
            if b"\\" in part:
                part = _ESCAPE.sub(b"  ", part)
            escaped = part.endswith(b"\\")
            codes = np.frombuffer(part, np.uint8)
            within = (np.cumsum(codes == ord('"'), dtype=np.uint8) + inside & 1).astype(bool)
            steps = _BY[codes]
            steps[within] = 0
            depths = np.cumsum(steps, dtype=np.int32) + depth
            if depths.max() > _MOST_LEVELS:
                raise RequestError("body: expected JSON, found more levels of it than anybody needs")
            inside, depth = int(within[-1]), max(-_MOST_LEVELS, int(depths[-1]))
            depths = np.maximum(depths, -_MOST_LEVELS).astype(np.int8)
            depths[within] = _IN_STRING
            self._depths[at : at + _STEP] = depths

    def __getitem__(self, at: int) -> int:
        return int(self._depths[at])

    def last_comma(self, depth: int, begin: int, end: int) -> int:
        """Of those at this depth, the last one from here to there, or -1."""
        found = np.flatnonzero((self._depths[begin:end] == depth) & (self._bytes[begin:end] == ord(",")))
        return begin + int(found[-1]) if len(found) else -1

    def end(self, depth: int, at: int) -> int:
        """Where what is at this depth here ends: at a comma, or at the bracket that closes all of it, or nowhere."""
        for begin in range(at, len(self._depths), _FAR):
            depths, codes = self._depths[begin : begin + _FAR], self._bytes[begin : begin + _FAR]
            ends = (depths == depth) & (codes == ord(","))
            ends |= (depths == depth - 1) & ((codes == ord("]")) | (codes == ord("}")))
            if ends.any():
                return begin + int(ends.argmax())
        return len(self._depths)


WINDOW = 1 << 15
"""Bytes of JSON that are parsed in one go: a millisecond or two, for which no other thread of Python runs."""
MOST_UNPACKED = 256 << 20
"""Bytes that objects, strings and lists of a larger body may take, which are no arrays of numbers."""
_SPACE = b" \t\n\r"
_STRING = re.compile(rb'(?:[^"\\]+|\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL)
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_NAMED = 8  # keys, in an error
_LIST, _OBJECT, _TEXT, _NUMBER = 64, 256, 96, 40  # bytes that each of these takes in Python, at most


@dataclass(frozen=True, slots=True)
class Body:
    """`infinities` says whether there are any: otherwise a number that is one was written too large."""

    fields: dict[str, Any]
    infinities: bool

    def text(self, key: str) -> str:
        """A string, or an empty one where there is none. Raises InputError."""
        found = self.fields.get(key, "")
        if not isinstance(found, str):
            raise InputError(key, expected="a string", found=kind(found))
        return found

    def listed(self, key: str) -> list[Any] | Long:
        """A list of one or more. Raises InputError."""
        if key not in self.fields:
            raise InputError("body", expected=f"key {key!r}", found=named(self.fields) or "none")
        found = self.fields[key]
        if not isinstance(found, list | Long) or not len(found):
            raise InputError(repr(key), expected="a list of one or more", found=kind(found))
        return found


def parsed(content: bytes) -> Body:
    """Raises RequestError. Any thread may call it; of what is large it lets others have their turn all the time."""
    content = content.removeprefix(BOM_UTF8)
    try:
        reader = _Reader(content)
        fields = reader.body()
    except RecursionError as error:
        raise RequestError("body: expected JSON, found more levels of it than anybody needs") from error
    except UnicodeDecodeError as error:
        raise _malformed("bytes that are no UTF-8") from error
    except ValueError as error:
        raise _malformed("a number of too many digits") from error
    return Body(fields, reader.infinities)


def parsed_bytes(content: bytes) -> int:
    """How many bytes `parsed` and the arrays made of it take at most, beside the content. Any thread: it is quick."""
    if len(content) <= WINDOW:
        return _unpacked_bytes(content)
    codes = np.frombuffer(content, np.uint8)
    commas = quotes = braces = 0
    for at in range(0, len(codes), 1 << 20):
        part = codes[at : at + (1 << 20)]
        commas += int(np.count_nonzero(part == ord(",")))
        quotes += int(np.count_nonzero(part == ord('"')))
        braces += int(np.count_nonzero(part == ord("{")))
    objects = quotes // 2 * _TEXT + braces * _OBJECT
    return 4 * len(content) + 8 * (commas + 1) + min(MOST_UNPACKED, 16 * len(content) + objects)


def kind(value: Any) -> str:
    """What JSON calls it."""
    if isinstance(value, list | Long):
        return f"a list of {len(value)}"
    names = {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def named(keys: Any) -> str:
    """Some keys, as an error names them."""
    some = [shown(one) for one, _ in zip(keys, range(_NAMED), strict=False)]
    return ", ".join(some) + (f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else "")


def _unpacked_bytes(text: bytes) -> int:
    """What it takes in Python as lists, objects and strings, at most."""
    containers = text.count(b"[") * _LIST + text.count(b"{") * _OBJECT
    return len(text) + containers + text.count(b'"') // 2 * _TEXT + (text.count(b",") + 1) * _NUMBER


def _malformed(found: str) -> RequestError:
    return RequestError(f"body: expected JSON, found {found}")


def _misplaced(found: str, at: int) -> RequestError:
    return _malformed(f"{found} at byte {at} or near it")


class _Reader:
    """Cuts what is larger than a window at commas, so that no single step takes long; all else is read whole."""

    def __init__(self, content: bytes) -> None:
        """Raises RequestError."""
        self._content = content
        self._depths = Depths(content if len(content) > WINDOW else b"")
        self._scan = json.JSONDecoder(object_pairs_hook=_once, parse_constant=self._constant).raw_decode
        self._room = MOST_UNPACKED
        self.infinities = False

    def body(self) -> dict[str, Any]:
        at, end = self._trimmed(0, len(self._content))
        if self._content[at : at + 1] != b"{":
            start, _ = utf_8_decode(self._content[at : at + 20], "strict", False)
            raise InputError("body", expected="a JSON object", found=repr(start) if self._content else "nothing")
        found: dict[str, Any] = self._value(at, end, 0)
        return found

    def _constant(self, name: str) -> float:
        self.infinities |= name != "NaN"
        return _CONSTANTS[name]

    def _value(self, at: int, end: int, depth: int) -> Any:
        """What is from here to there, without spaces around it, in so many lists and objects."""
        if end - at <= WINDOW:
            return self._whole(at, end)
        first, last = self._content[at : at + 1], self._content[end - 1 : end]
        closing = {b"[": b"]", b"{": b"}", b'"': b'"'}.get(first)
        if closing is None:
            raise _misplaced("a number of too many digits", at)
        if last != closing:
            raise _misplaced(f"no {closing.decode()} for what begins at byte {at}, but something else", end)
        read = {b"[": self._list, b"{": self._object}.get(first)
        return self._text(at + 1, end - 1) if read is None else read(at + 1, end - 1, depth + 1)

    def _whole(self, at: int, end: int, brackets: str = "") -> Any:
        """Parse what is from here to there, in brackets if need be."""
        text = brackets[:1] + self._content[at:end].decode() + brackets[1:]
        try:
            found, stop = self._scan(text, 0)
        except JSONDecodeError as error:
            raise _misplaced(_wrong(error.msg), max(0, at + error.pos - len(brackets) // 2)) from error
        if stop != len(text):
            raise _misplaced("extra data", at + stop)
        return found

    def _runs(self, at: int, end: int, depth: int) -> Iterator[tuple[int, int]]:
        """All between two brackets: as many elements at a time as are in a window, or one that is larger."""
        more = False
        while at < end or more:
            cut = end
            if end - at > WINDOW:
                cut = self._depths.last_comma(depth, at, at + WINDOW)
                cut = min(end, self._depths.end(depth, at)) if cut < 0 else cut
                if cut < end and self._content[cut] != ord(","):
                    raise _misplaced("extra data", cut)
            begin, stop = self._trimmed(at, cut)
            if begin < stop:
                yield begin, stop
            elif more or cut < end:
                raise _misplaced("expecting value", cut)
            more = cut < end
            at = cut + 1

    def _list(self, at: int, end: int, depth: int) -> Long:
        parts = []
        for begin, stop in self._runs(at, end, depth):
            large = stop - begin > WINDOW
            values = [self._value(begin, stop, depth)] if large else self._whole(begin, stop, "[]")
            part = packed(values)
            if not large and not is_numbers(part):
                self._keep(begin, stop)
            parts.append(part)
        return Long(parts)

    def _object(self, at: int, end: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for begin, stop in self._runs(at, end, depth):
            if stop - begin > WINDOW:
                key, after = self._key(begin)
                more = {key: self._value(*self._trimmed(after, stop), depth)}
            else:
                self._keep(begin, stop)
                more = self._whole(begin, stop, "{}")
            if twice := found.keys() & more.keys():
                raise InputError(f"key {shown(twice.pop())}", expected="once in an object", found="2 times or more")
            found |= more
        return found

    def _key(self, at: int) -> tuple[str, int]:
        """Of a large value, which begins after the colon."""
        content = self._content[at : at + WINDOW]
        text, _ = utf_8_decode(content, "strict", False)
        if not text.startswith('"'):
            raise _misplaced("no name of a key", at)
        try:
            key, stop = self._scan(text, 0)
        except JSONDecodeError as error:
            raise _misplaced(_wrong(error.msg), at + error.pos) from error
        begin, _ = self._trimmed(at + len(text[:stop].encode()), at + len(content))
        if self._content[begin : begin + 1] != b":":
            raise _misplaced("no colon after a key", begin)
        return key, begin + 1

    def _text(self, at: int, end: int) -> str:
        parts: list[str] = []
        while at < end:
            match = _STRING.match(self._content, at, min(end, at + WINDOW))
            assert match is not None  # it matches nothing too
            text, size = utf_8_decode(self._content[at : match.end()], "strict", match.end() == end)
            if not size:
                raise _misplaced("a string that ends, or an escape that is none,", at)
            try:
                part: str = self._scan(f'"{text}"', 0)[0]
            except JSONDecodeError as error:
                raise _misplaced(_wrong(error.msg), at + error.pos) from error
            if parts and "\ud800" <= parts[-1][-1:] <= "\udbff" and "\udc00" <= part[:1] <= "\udfff":
                both = (parts[-1][-1] + part[0]).encode("utf-16", "surrogatepass").decode("utf-16")
                parts[-1], part = parts[-1][:-1] + both, part[1:]
            parts.append(part)
            at += size
        return "".join(parts)

    def _keep(self, at: int, end: int) -> None:
        self._room -= _unpacked_bytes(self._content[at:end])
        if self._room < 0:
            found = "more of objects, of strings, or of lists that are no arrays"
            raise InputError("body", expected=f"what takes {MOST_UNPACKED >> 20} MB of memory", found=found)

    def _trimmed(self, at: int, end: int) -> tuple[int, int]:
        """The same without spaces."""
        while at < end:
            part = self._content[at : min(end, at + WINDOW)]
            at += len(part) - len(rest := part.lstrip(_SPACE))
            if rest:
                break
        while at < end:
            part = self._content[max(at, end - WINDOW) : end]
            end -= len(part) - len(rest := part.rstrip(_SPACE))
            if rest:
                break
        return at, end


def _wrong(said: str) -> str:
    """What Python's parser says, in our words, which are the same in each version of it."""
    for theirs, ours in (("','", "no comma"), ("':'", "no colon after a key"), ("property name", "no name of a key")):
        if theirs in said:
            return ours
    return said.lower()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Which of two values under one key counts, nobody could know."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, count = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InputError(f"key {shown(twice)}", expected="once in an object", found=f"{count} times")
    return found
