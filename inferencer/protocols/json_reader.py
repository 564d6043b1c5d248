"""Reads JSON bodies, each in one step with orjson, within limits of size and memory."""

from __future__ import annotations

import gc
import json
from codecs import BOM_UTF8
from collections import Counter
from json import JSONDecodeError
from typing import Any

import numpy as np
import orjson

from paramsync.errors import InputError, ParamsyncError, RequestError, TooLargeError
from paramsync.host.files import shown

MOST_BYTES = 16 << 20
"""Most bytes of JSON in a body, because parsing holds the GIL. Binary tensors after the JSON do not count."""
_MOST_SLOWLY = 2 << 20  # most bytes for the standard library's parser, which takes as long as orjson for 16 MB
_NAMED = 8  # most keys that an error shows
_LIST, _OBJECT, _TEXT, _KEY, _VALUE = 96, 256, 96, 128, 72  # bytes in memory of each, with orjson's scratch space
_SLOW = "NaN, Infinity, half a surrogate pair or a key twice"
_NO_MARKS = bytes(set(range(256)) - set(b':"'))
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class BodyTooLargeError(TooLargeError):
    """A body, or the JSON in a body, is larger than the limit."""

    http_status = 413

    def __init__(self, most: str, found: str) -> None:
        ParamsyncError.__init__(self, f"body: expected at most {most}, found {found}")


class Body:
    """A body: one JSON object."""

    def __init__(self, content: bytes) -> None:
        """Parse `content`, whose size the caller has checked with `parsed_bytes`. Raises RequestError."""
        self.infinities = False
        """True if the body has the word Infinity. If False, an infinite value was a number too large for a float."""
        value = self._parse(content.removeprefix(BOM_UTF8)) if content else None
        if not isinstance(value, dict):
            raise InputError("body", expected="a JSON object", found=kind(value) if content else "nothing")
        self.fields: dict[str, Any] = value

    def _parse(self, content: bytes) -> Any:
        """Parse with orjson. Use the standard library for bodies with NaN, Infinity or half surrogate pairs, which
        orjson refuses, or with duplicate keys, which orjson accepts silently."""
        gc.disable()  # a garbage collection would find nothing, and take longer than the parsing
        try:
            value = orjson.loads(content)
        except JSONDecodeError as error:
            if not _is_for_standard_library(content, error.msg):
                raise _malformed(f"{error.msg.partition(':')[0]} at byte {error.pos} or near it") from None
            return self._parse_slowly(content)
        finally:
            gc.enable()
        keys = _count_keys(value, content.count(b"{"))
        if keys != content.count(b":") and keys != _count_colons(content):
            del value  # otherwise two parsed values would be in memory
            return self._parse_slowly(content)
        return value

    def _parse_slowly(self, content: bytes) -> Any:
        if len(content) > _MOST_SLOWLY:
            raise BodyTooLargeError(f"{_MOST_SLOWLY} bytes of JSON with {_SLOW}", _larger(content))
        decoder = json.JSONDecoder(object_pairs_hook=_once, parse_constant=self._constant)
        try:
            return decoder.decode(content.decode())
        except JSONDecodeError as error:
            raise _malformed(f"{error.msg.lower()} at byte {error.pos} or near it") from None
        except UnicodeDecodeError:
            raise _malformed("bytes that are no UTF-8") from None
        except RecursionError:
            raise _malformed("too many levels of lists and objects") from None
        except ValueError:
            raise _malformed("a number of too many digits") from None

    def _constant(self, name: str) -> float:
        self.infinities |= name != "NaN"
        return _CONSTANTS[name]

    def text(self, key: str) -> str:
        """Return the string of this key, or "" if the key is missing. Raises InputError."""
        return text(key, self.fields.get(key, ""))

    def listed(self, key: str) -> list[Any]:
        """Return the list of this key. Raises InputError if there is none or it is empty."""
        if key not in self.fields:
            raise InputError("body", expected=f"key {key!r}", found=named(self.fields) or "none")
        value = self.fields[key]
        if not isinstance(value, list) or not value:
            raise InputError(repr(key), expected="a list of one or more", found=kind(value))
        return value


def parsed_bytes(content: bytes) -> int:
    """Estimate the most bytes that a Body and its arrays take in addition to `content`. Raises BodyTooLargeError."""
    if len(content) > MOST_BYTES:
        raise BodyTooLargeError(f"{MOST_BYTES} bytes of JSON", _larger(content))
    containers = content.count(b"[") * _LIST + content.count(b"{") * _OBJECT
    strings = content.count(b'"') // 2 * _TEXT + content.count(b":") * _KEY
    return 2 * len(content) + containers + strings + (content.count(b",") + 1) * _VALUE


def text(what: str, value: Any) -> str:
    """Return a value that must be a string of UTF-8, because messages need UTF-8. Raises InputError."""
    if not isinstance(value, str):
        raise InputError(what, expected="a string", found=kind(value))
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(what, expected="a string of UTF-8", found="half a surrogate pair") from error
    return value


def kind(value: Any) -> str:
    """Name the kind of a JSON value for an error."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")


def named(keys: Any) -> str:
    """List the first keys for an error."""
    some = [shown(key) for key, _ in zip(keys, range(_NAMED), strict=False)]
    return ", ".join(some) + (f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else "")


def _count_keys(value: Any, braces: int) -> int:
    """Count the keys of all objects in a value. A body with more colons outside strings has a duplicate key.

    `braces` is the number of opening braces in the body. The search ends once as many objects are found.
    """
    keys, level = 0, [value]
    while level and braces > 0:
        objects = [container for container in level if type(container) is dict]
        keys += sum(map(len, objects))
        braces -= len(objects)
        inner = [container.values() if type(container) is dict else container for container in level]
        level = [element for elements in inner for element in elements if type(element) in (dict, list)]
    return keys


def _count_colons(content: bytes) -> int:
    """Count the colons outside the strings of valid JSON."""
    unescaped = content.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = np.frombuffer(unescaped.translate(None, _NO_MARKS), np.uint8)
    is_quote = marks == ord('"')
    return int(np.count_nonzero(~is_quote & ~np.logical_xor.accumulate(is_quote)))


def _is_for_standard_library(content: bytes, problem: str) -> bool:
    return "infinity" in problem or "surrogate" in problem or b"NaN" in content or b"Infinity" in content


def _larger(content: bytes) -> str:
    return f"{len(content)}; larger inputs by gRPC"


def _malformed(found: str) -> RequestError:
    return RequestError(f"body: expected JSON, found {found}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a duplicate key, because either of its values could be meant."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twice, count = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InputError(f"key {shown(twice)}", expected="once in an object", found=f"{count} times")
    return members
