"""One field of a header or trailer section, and whether RFC 9113 forbids it."""

from __future__ import annotations

import re
from typing import NamedTuple

OVERHEAD = 32  # bytes that a field counts in addition to its name and value, RFC 7541, 4.1

_PSEUDO = frozenset([":method", ":scheme", ":path", ":authority"])
_OF_CONNECTIONS = frozenset(["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"])
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(r"(?:[^\x00\r\n \t](?:[^\x00\r\n]*[^\x00\r\n \t])?)?")


class Field(NamedTuple):
    name: str
    value: str
    size: int
    fault: str  # why the field is forbidden; "" if it is allowed


def field(name: bytes, value: bytes) -> Field:
    """Make a Field and check it. A Field in the dynamic table is not checked again."""
    text, content = name.decode("latin-1"), value.decode("latin-1")
    return Field(text, content, len(name) + len(value) + OVERHEAD, _fault(text, content))


def _fault(name: str, value: str) -> str:
    if name not in _PSEUDO and not _NAME.fullmatch(name):
        return "a name with forbidden characters, or an unknown pseudo-header"
    if not _VALUE.fullmatch(value):
        return f"{name} with forbidden characters"
    if name in _OF_CONNECTIONS or (name == "te" and value != "trailers"):
        return f"{name}, which is for one connection"
    return ""
