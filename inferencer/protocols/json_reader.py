"""Reads JSON bodies: small ones whole, large ones in windows, so that no step holds the GIL for long."""

from __future__ import annotations

import json
import re
import weakref
from codecs import BOM_UTF8, utf_8_decode
from collections import Counter
from collections.abc import Iterable, Iterator
from json import JSONDecodeError
from typing import Any

import numpy as np

from paramsync.errors import InputError, RequestError
from paramsync.host.files import shown

WINDOW = 1 << 15
"""Bytes of JSON that are parsed in one go: a millisecond or two in which no other thread has the GIL."""
MOST_UNPACKED = 256 << 20
"""Bytes that the objects and strings of a larger body may take. Lists become arrays window by window."""
_MOST_LEVELS = 100
_NAMED = 8  # keys that an error shows
_SPACE = b" \t\n\r"
_LONGEST_ESCAPE = 6  # bytes
_KEY = re.compile(rb'("(?:[^"\\]|\\.)*")[ \t\n\r]*:', re.DOTALL)
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_LIST, _OBJECT, _TEXT, _NUMBER = 64, 256, 96, 40  # bytes that each of these takes in Python, at most


class Body:
    """The object that a body is. Any thread may read it."""

    def __init__(self, content: bytes) -> None:
        """Raises RequestError. What is in lists of more than a window is read, and may be refused, later."""
        self._lists = _Lists()
        self._reader = _Reader(content.removeprefix(BOM_UTF8), self._lists)
        self.fields: dict[str, Any] = self._reader.body()

    @property
    def infinities(self) -> bool:
        """Whether one was written so far; otherwise an infinite number is one that was written too large."""
        return self._reader.constants.infinities

    def text(self, key: str) -> str:
        """A string, or an empty one where there is none. Raises InputError."""
        return text(key, self.fields.get(key, ""))

    def listed(self, key: str) -> list[Any] | LargeList:
        """A list of one or more. Raises InputError."""
        if key not in self.fields:
            raise InputError("body", expected=f"key {key!r}", found=named(self.fields) or "none")
        value = self.fields[key]
        if not isinstance(value, list | LargeList) or value == []:
            raise InputError(repr(key), expected="a list of one or more", found=kind(value))
        return value

    def check_unread(self) -> None:
        """Parse the lists that nobody has read. Raises RequestError."""
        for large in self._lists:
            if not large.is_read:
                for _ in large.parts(keep=False):
                    pass


class LargeList:
    """A list of more than a window, which is parsed while it is read."""

    __slots__ = ("_begin", "_depth", "_end", "_reader", "is_read")

    def __init__(self, reader: _Reader, begin: int, end: int, depth: int) -> None:
        self._reader = reader
        self._begin = begin
        self._end = end
        self._depth = depth
        self.is_read = False

    def parts(self, *, keep: bool = True) -> Iterator[list[Any]]:
        """The elements, as many at a time as are in a window. `keep` is for a caller that keeps them in memory as they
        are, not as numbers of arrays. Raises RequestError."""
        self.is_read = True
        return self._reader.parts(self._begin, self._end, self._depth, keep=keep)


class _Lists(list[LargeList]):
    """All of one body."""


def parts(values: list[Any] | LargeList, *, keep: bool = True) -> Iterable[list[Any]]:
    """The elements of any list; see LargeList."""
    return values.parts(keep=keep) if isinstance(values, LargeList) else (values,)


def elements(values: list[Any] | LargeList) -> Iterator[Any]:
    """One after the other. Raises RequestError."""
    for part in parts(values):
        yield from part


def parsed_bytes(content: bytes) -> int:
    """How many bytes a Body and the arrays made of it take at most, beside the content. Any thread: it is quick."""
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


def text(what: str, value: Any) -> str:
    """A string that messages can have. Raises InputError."""
    if not isinstance(value, str):
        raise InputError(what, expected="a string", found=kind(value))
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(what, expected="a string of UTF-8", found="half a surrogate pair") from error
    return value


def kind(value: Any) -> str:
    """What JSON calls it."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    names = {LargeList: "a long list", dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def named(keys: Any) -> str:
    """Some keys, as an error shows them."""
    some = [shown(key) for key, _ in zip(keys, range(_NAMED), strict=False)]
    return ", ".join(some) + (f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else "")


def _unpacked_bytes(text: bytes) -> int:
    """What it takes in Python as lists, objects and strings, at most."""
    containers = text.count(b"[") * _LIST + text.count(b"{") * _OBJECT
    return len(text) + containers + text.count(b'"') // 2 * _TEXT + (text.count(b",") + 1) * _NUMBER


_TOO_DEEP = "body: expected JSON, found more levels of it than anybody needs"
_IN_STRING = -1
_STEP = 1 << 16  # bytes whose depths are counted in one go
_FAR = 1 << 20  # bytes that are searched in one go
_BY = np.zeros(256, np.int8)
_BY[[ord("["), ord("{")]] = 1
_BY[[ord("]"), ord("}")]] = -1


class Depths:
    """In how many lists and objects each byte of a JSON text is. Linear in its size; of other texts anything."""

    def __init__(self, content: bytes) -> None:
        """Raises RequestError for more levels than anybody needs."""
        self._bytes = np.frombuffer(content, np.uint8)
        self._depths = np.empty(len(content), np.int8)
        inside, depth, escaped = 0, 0, False
        for at in range(0, len(content), _STEP):
            codes, escaped = _without_escapes(content[at : at + _STEP], escaped)
            quotes = codes == ord('"')
            if inside and not quotes.any():
                self._depths[at : at + _STEP] = _IN_STRING
                continue
            within = (np.cumsum(quotes, dtype=np.uint8) + inside & 1).astype(bool)
            steps = _BY[codes]
            steps[within] = 0
            depths = np.cumsum(steps, dtype=np.int32) + depth
            if depths.max() > _MOST_LEVELS:
                raise RequestError(_TOO_DEEP)
            inside, depth = int(within[-1]), max(-_MOST_LEVELS, int(depths[-1]))
            depths = np.maximum(depths, -_MOST_LEVELS).astype(np.int8)
            depths[within] = _IN_STRING
            self._depths[at : at + _STEP] = depths

    def last_comma(self, depth: int, begin: int, end: int) -> int:
        """The last comma at this depth between two places, or -1."""
        commas = np.flatnonzero((self._depths[begin:end] == depth) & (self._bytes[begin:end] == ord(",")))
        return begin + int(commas[-1]) if len(commas) else -1

    def end(self, depth: int, at: int) -> int:
        """Where the element ends that is here at this depth: at a comma, at the bracket around it, or nowhere."""
        for begin in range(at, len(self._depths), _FAR):
            depths, codes = self._depths[begin : begin + _FAR], self._bytes[begin : begin + _FAR]
            ends = (depths == depth) & (codes == ord(","))
            ends |= (depths == depth - 1) & ((codes == ord("]")) | (codes == ord("}")))
            if ends.any():
                return begin + int(ends.argmax())
        return len(self._depths)


def _without_escapes(part: bytes, escaped: bool) -> tuple[Any, bool]:
    """Its bytes, with spaces in place of escapes. `escaped` says whether the first one belongs to an escape that began
    before; so does the answer for the byte after the last."""
    codes = np.frombuffer(part, np.uint8)
    if escaped or b"\\" in part:
        codes = codes.copy()
        codes[:escaped] = ord(" ")
        slashes = np.flatnonzero(codes == ord("\\"))
        order = np.arange(len(slashes))
        run = np.maximum.accumulate(np.where(np.diff(slashes, prepend=-2) > 1, order, 0))  # where it begins
        begins = slashes[(order - run) % 2 == 0]
        escaped = len(begins) > 0 and int(begins[-1]) == len(part) - 1
        codes[begins] = ord(" ")
        codes[begins[: len(begins) - escaped] + 1] = ord(" ")
    return codes, escaped


class _Constants:
    """Numbers that are written as words."""

    infinities = False

    def value(self, name: str) -> float:
        self.infinities |= name != "NaN"
        return _CONSTANTS[name]


class _Reader:
    """Cuts what is larger than a window at commas, so that no single step takes long; all else is parsed whole."""

    def __init__(self, content: bytes, lists: _Lists) -> None:
        """`lists` gets those that are read later. Raises RequestError."""
        self._content = content
        self._depths = Depths(content if len(content) > WINDOW else b"")
        self.constants = _Constants()
        self._scan = json.JSONDecoder(object_pairs_hook=_once, parse_constant=self.constants.value).raw_decode
        self._left = MOST_UNPACKED
        self._lists = weakref.ref(lists)  # they have this reader, which would stay until garbage is collected

    def body(self) -> dict[str, Any]:
        at, end = self._trimmed(0, len(self._content))
        if self._content[at : at + 1] != b"{":
            start = _decoded(self._content[at : at + 20], whole=False)
            raise InputError("body", expected="a JSON object", found=repr(start) if self._content else "nothing")
        fields: dict[str, Any] = self._value(at, end, 0)
        return fields

    def _value(self, at: int, end: int, depth: int) -> Any:
        """The value between two places, without spaces around it, in so many lists and objects."""
        if end - at <= WINDOW:
            return self._whole(at, end)
        first, last = self._content[at : at + 1], self._content[end - 1 : end]
        closing = {b"[": b"]", b"{": b"}", b'"': b'"'}.get(first)
        if closing is None:
            raise _misplaced("a number of too many digits", at)
        if last != closing:
            raise _misplaced(f"no {closing.decode()} for what begins at byte {at}, but something else", end)
        if first == b'"':
            return self._text(at + 1, end - 1)
        if first == b"{":
            return self._object(at + 1, end - 1, depth + 1)
        begin, stop = self._trimmed(at + 1, end - 1)
        if stop - begin <= WINDOW:
            return self._whole(begin, stop, "[]")
        large = LargeList(self, begin, stop, depth + 1)
        if (lists := self._lists()) is not None:
            lists.append(large)
        return large

    def _whole(self, at: int, end: int, brackets: str = "") -> Any:
        """Parse the text between two places, in brackets if need be."""
        text = brackets[:1] + _decoded(self._content[at:end]) + brackets[1:]
        value, stop = self._scanned(text, at - len(brackets) // 2)
        if stop != len(text):
            raise _misplaced("extra data", at + stop)
        return value

    def _scanned(self, text: str, at: int) -> tuple[Any, int]:
        """The first value of a text, which begins at this byte or near it, and where it ends. Raises RequestError."""
        try:
            return self._scan(text, 0)
        except JSONDecodeError as error:
            raise _misplaced(_wrong(error.msg), max(0, at + error.pos)) from error
        except RecursionError as error:
            raise RequestError(_TOO_DEEP) from error
        except ValueError as error:
            raise _malformed("a number of too many digits") from error

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

    def parts(self, at: int, end: int, depth: int, *, keep: bool) -> Iterator[list[Any]]:
        """See LargeList."""
        for begin, stop in self._runs(at, end, depth):
            if stop - begin > WINDOW:
                yield [self._value(begin, stop, depth)]
            else:
                if keep:
                    self._keep(begin, stop)
                yield self._whole(begin, stop, "[]")

    def _object(self, at: int, end: int, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for begin, stop in self._runs(at, end, depth):
            if stop - begin > WINDOW:
                key = _KEY.match(self._content, begin, begin + WINDOW)
                if key is None:
                    raise _misplaced("no name of a key, or no colon after it", begin)
                more = {self._whole(begin, key.end(1)): self._value(*self._trimmed(key.end(), stop), depth)}
            else:
                self._keep(begin, stop)
                more = self._whole(begin, stop, "{}")
            if twice := members.keys() & more.keys():
                raise InputError(f"key {shown(twice.pop())}", expected="once in an object", found="2 times or more")
            members |= more
        return members

    def _text(self, at: int, end: int) -> str:
        parts: list[str] = []
        while at < end:
            stop = end if end - at <= WINDOW else self._before_escape(at, at + WINDOW)
            text = _decoded(self._content[at:stop], whole=stop == end)
            part, scanned = self._scanned(f'"{text}"', at)
            if scanned < len(text) + 2 or not text:
                raise _misplaced("a string that ends, or an escape that is none,", at)
            if parts and "\ud800" <= parts[-1][-1:] <= "\udbff" and "\udc00" <= part[:1] <= "\udfff":
                pair = (parts[-1][-1] + part[0]).encode("utf-16", "surrogatepass").decode("utf-16")
                parts[-1], part = parts[-1][:-1] + pair, part[1:]
            parts.append(part)
            at += len(text.encode())
        return "".join(parts)

    def _before_escape(self, at: int, end: int) -> int:
        """The end of a part of a string, or where an escape begins that is not whole there."""
        last = self._content.rfind(b"\\", end - _LONGEST_ESCAPE, end)
        before = self._content[at : last + 1]
        if last < 0 or (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return end
        size = _LONGEST_ESCAPE if self._content[last + 1 : last + 2] == b"u" else 2
        return end if last + size <= end else last

    def _keep(self, at: int, end: int) -> None:
        self._left -= _unpacked_bytes(self._content[at:end])
        if self._left < 0:
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


def _decoded(content: bytes, *, whole: bool = True) -> str:
    """Text, of which the last character may be missing where it is not the whole. Raises RequestError."""
    try:
        return utf_8_decode(content, "strict", whole)[0]
    except UnicodeDecodeError as error:
        raise _malformed("bytes that are no UTF-8") from error


def _malformed(found: str) -> RequestError:
    return RequestError(f"body: expected JSON, found {found}")


def _misplaced(found: str, at: int) -> RequestError:
    return _malformed(f"{found} at byte {at} or near it")


def _wrong(message: str) -> str:
    """What Python's parser says, in our words, which are the same in each version of it."""
    for theirs, ours in (("','", "no comma"), ("':'", "no colon after a key"), ("property name", "no name of a key")):
        if theirs in message:
            return ours
    return message.lower()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a key that is there twice: nobody could know which of its values counts."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twice, count = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InputError(f"key {shown(twice)}", expected="once in an object", found=f"{count} times")
    return members
